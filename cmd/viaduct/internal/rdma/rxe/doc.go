// Package rxe does the work of a device that rdma-core's rxe provider drives, in place of the kernel's
// rdma_rxe: completion queues, queue pairs of three types, shared receive queues, address handles,
// memory windows and multicast groups. If both ends of a connection are queue pairs of one [Fabric],
// payload is copied from the memory of one program to that of the other. Other peers are reached by
// RoCEv2 (packages rocecore and roceudp): other supervisors, the kernel's rxe, adapters.
//
// The queues are rings in memory that the program can write at any time. An entry is copied once, and
// only the copy is looked at; indexes are masked; lengths are checked against what was made.
//
// # Locks
//
// Each side of a queue pair has a lock of its own. They are taken in this order, and a queue pair may
// so be connected to itself:
//
//	sendSide.mu -> recvSide.mu (of any queue pair) -> SRQ.mu -> Space.mu -> CQ.mu
//
// The lock of a roceudp.Pair comes before those of both sides for a connection, and between them for
// datagrams. QP.changing comes before all.
//
// QP.mu and Fabric.mu are leaves: nothing else is locked under them. A long copy holds the send side of
// the requester and the receive side of the responder, and stops no other queue pair.
package rxe
