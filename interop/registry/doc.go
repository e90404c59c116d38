// Registry tries the registry of names against a real etcd of three members, and a real
// DNS server.
//
//	go run ./interop/registry
//
// The members run on loopback with an election time-out of half a second. A Port Mapper
// answers from the cluster, listeners of the command register there with leases of six
// seconds, and 500 lookups a second go on all the time:
//
//   - the leader is killed by SIGKILL: no lookup fails for longer than the election and
//     one second, and a new listener can register;
//   - a listener is killed: it is not answered beyond its lease;
//   - two members are killed, so that there is no quorum: lookups are answered from the
//     last known table, for one connection each, none beyond its lease; the Port Mapper's
//     metric says so, and a registration is refused with a reason;
//   - the members come back: what lives is answered again, and can register;
//   - the history that a watch needs is compacted while its member is away: the change in
//     it is answered all the same;
//   - the cluster is started again as a whole;
//   - two fabrics and their 20 members register: each member is reached by name from the
//     other fabric, also while a leader is elected; a fabric that is killed and started
//     again serves all of them within five seconds; a member that ends is gone at once, one
//     that is killed with its lease;
//   - SRV records of dnsmasq are answered, and a registration there is refused.
//
// It needs the programs etcd and dnsmasq (Debian: etcd-server and dnsmasq-base), and skips
// loudly what it does not find.
package main
