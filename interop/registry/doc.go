// Registry tests the registry of names with a real etcd of three members, and a real DNS server.
//
//	go run ./interop/registry
//
// The members run on loopback with an election time-out of half a second. A Port Mapper answers
// from the cluster, listeners of the command register there with leases of six seconds, and 500
// lookups a second go on all the time:
//
//   - the leader is killed by SIGKILL: no lookup fails for longer than the election and one second,
//     and a new listener can register;
//   - a listener is killed: lookups do not return it beyond its lease;
//   - two members are killed, so that there is no quorum: lookups are answered from the last known
//     table, for one connection each, none beyond its lease; the Port Mapper's metric reports that,
//     and a registration is refused with a reason;
//   - the members are restarted: live services are answered again, and can register;
//   - the history that a watch needs is compacted while its member is down: lookups still return
//     the change in it;
//   - the whole cluster is restarted;
//   - two fabrics and their 20 members register: each member is reached by name from the other
//     fabric, also during the election of a leader; a fabric that is killed and restarted serves
//     all of them again in time; the record of a member that ends is removed at once, that of a
//     killed member with its lease;
//   - SRV records of dnsmasq are answered, and a registration there is refused.
//
// The program needs etcd and dnsmasq (Debian: etcd-server and dnsmasq-base), and skips loudly if
// one is missing.
package main
