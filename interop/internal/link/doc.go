// Package link emulates a bad network between network namespaces. It replaces the kernel's netem,
// which many kernels lack. Package link needs only TUN devices, and works for an ordinary user in a
// user namespace.
//
// A [Network] has a port in each namespace. A port is a TUN device. The [Fault] of a port is
// applied to every IPv4 packet sent by the port's namespace. The Fault determines when and how
// often a packet arrives at the port with the destination address, and whether one bit of the
// packet is wrong. Packets are lost silently, as on a wire.
package link
