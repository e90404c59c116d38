// Package rxe implements a device for rdma-core's rxe provider, instead of the kernel's rdma_rxe:
// completion queues, queue pairs of three types, shared receive queues, address handles, memory
// windows and multicast groups. If both ends of a connection are queue pairs of one [Fabric], the
// payload is copied from the memory of one program to the memory of the other. Other peers are
// reached by RoCEv2 (packages rocecore and roceudp): programs under another supervisor (another
// "viaduct run"), the kernel's rxe, adapters.
//
// The queues are rings in memory the program can write at any time. Therefore an entry is copied
// once, and only the copy is examined; indexes are masked; lengths are checked against the size of
// the ring.
//
// # Locks
//
// Each side of a queue pair has its own lock. The locks are taken in the following order, which
// also allows a queue pair to be connected to itself:
//
//	sendSide.mu -> recvSide.mu (of any queue pair) -> SRQ.mu -> Space.mu -> CQ.mu
//
// The lock of a roceudp.Pair is taken before both sides for a connection, and between them for
// datagrams. QP.changing is taken before all of these.
//
// No other lock is taken while QP.mu or Fabric.mu is held. A long copy holds only the send side of
// the requester and the receive side of the responder, and delays no other queue pair.
package rxe
