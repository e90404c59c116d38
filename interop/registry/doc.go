// Registry tests the registry of names with a real etcd of three members, and a real DNS server.
//
//	go run ./interop/registry
//
// The members run on loopback with an election time-out of half a second. A Port Mapper answers
// from the cluster, listeners of the command register there with leases of six seconds, and 500
// lookups a second go on all the time:
//
//   - the leader is killed by SIGKILL: no lookup fails for longer than the election and five seconds,
//     and a new listener can register;
//   - a listener is killed: lookups do not return the listener after the lease has ended;
//   - two members are killed, and there is no quorum: lookups are answered from the last known
//     table, for one connection each, none beyond its lease; the Port Mapper's metric reports the
//     loss, and a registration is refused with a reason;
//   - the members are restarted: live services are answered again, and can register;
//   - the history needed by a watch is compacted while the watched member is down: lookups still
//     return the change in the history;
//   - the whole cluster is restarted;
//   - two fabrics and their 20 members register: each member is reached by name from the other
//     fabric, also during the election of a leader; a killed and restarted fabric serves all
//     members again in time; the record of an ended member is removed at once, the record of a
//     killed member with the lease;
//   - SRV records of dnsmasq are answered, and a registration there is refused.
//
// The program needs etcd and dnsmasq (Debian: etcd-server and dnsmasq-base), and skips loudly if
// either is missing.
package main
