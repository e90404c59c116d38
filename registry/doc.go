// Package registry finds services on more than one host. A registry is a table of names on a
// server, or in a file, within reach of all hosts. Services register themselves there for as long
// as they live.
//
// A [Registry] registers a [Record] under a lease, resolves a name to the registered records, and
// watches for changes. A registration ends if the lease is not renewed, so that a dead host
// disappears from the table; [Keep] renews a lease for as long as a process wants. Every record of
// an answer has the time of expiry. The answer also says whether the registry is out of reach, so
// that the records are only the last known.
//
// The package has a file whose changes are followed ([File]), and read-only DNS SRV records
// ([DNS]). A program adds any other kind by implementing Registry. [Table] helps: it keeps the
// known records, drops expired ones and serves Resolve and Watch from memory, so that lookups do
// not wait for the network and do not fail while the registry is out of reach. The command viaduct
// has an implementation for etcd.
//
// The kinds of names in this module are [PortMapper], [VI] and [Fabric].
//
//	reg := registry.NewFile("/etc/viaduct/registry")
//	k, err := registry.Keep(ctx, reg, registry.Record{
//		Kind: registry.VI, Name: "node7", Value: "192.0.2.7",
//	}, 30*time.Second, nil)
//	...
//	defer k.Close()
//	a, err := reg.Resolve(ctx, registry.VI, "node7")
package registry
