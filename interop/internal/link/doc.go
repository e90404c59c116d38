// Package link emulates a bad network between network namespaces: a stand-in for
// the kernel's netem, which many kernels are built without. It needs no module,
// only TUN devices, and works for an ordinary user in a user namespace.
//
// A [Network] has a port in each namespace. A port is a TUN device; every IPv4
// packet that the namespace sends into it is given to the [Fault] of that port,
// which decides when it arrives at the port that has its destination address, how
// often, and with which bit wrong. A packet is lost silently, as on a wire.
package link
