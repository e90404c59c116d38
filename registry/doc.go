// Package registry is how services that grow past one host are found: a table of
// names, kept by something that all hosts can ask, in which services register
// themselves for as long as they live.
//
// A [Registry] registers a [Record] under a lease, resolves a name to the records
// that are registered, and watches for changes. A registration whose lease is not
// renewed ends, so a host that dies is gone from the table when its lease ends; [Keep]
// renews one for as long as a process wants it. Every record of an answer says when it
// stops being valid, and the answer says whether it is the last known one because the
// registry can't be asked at the moment.
//
// Here are a file that is followed when it changes ([File]) and DNS SRV records, which
// can only be read ([DNS]). A program brings any other kind by implementing Registry;
// [Table] does what such an implementation needs: it keeps what is known, drops what has
// ended and serves Resolve and Watch from memory, so that lookups wait for no network
// and do not fail while the registry is out of reach. The command viaduct has one for
// etcd.
//
// The kinds of names that this module uses are [PortMapper], [VI] and [Fabric].
//
//	reg := registry.NewFile("/etc/viaduct/registry")
//	k, err := registry.Keep(ctx, reg, registry.Record{
//		Kind: registry.VI, Name: "node7", Value: "192.0.2.7",
//	}, 30*time.Second, nil)
//	...
//	defer k.Close()
//	a, err := reg.Resolve(ctx, registry.VI, "node7")
package registry
