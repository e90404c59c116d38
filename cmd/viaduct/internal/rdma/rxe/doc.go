// Package rxe implements a device for rdma-core's rxe provider, instead of the kernel's rdma_rxe:
// completion queues, queue pairs of three types, shared receive queues, address handles, memory
// windows and multicast groups. If both ends of a connection are queue pairs of the same [Fabric],
// the payload is copied directly between the memories of the two programs. Other peers are reached
// by RoCEv2 (packages rocecore and roceudp): programs under another supervisor (another "viaduct
// run"), the kernel's rxe, adapters.
//
// The queues are rings in memory the program can write at any time. Therefore an entry is copied
// once, and only the copy is examined; indexes are masked; lengths are checked against the size of
// the ring.
//
// # Locks
//
// Each side of a queue pair has a separate lock. The locks are taken in the following order, also
// for a queue pair connected to itself:
//
//	sendSide.mu -> recvSide.mu (of any queue pair) -> SRQ.mu -> Space.mu -> CQ.mu
//
// The lock of a roceudp.Pair is taken before both sides for a connection, and between the sides for
// datagrams. QP.changing is taken before all locks named above.
//
// No other lock is taken while QP.mu or Fabric.mu is held. A long copy holds only the send side of
// the requester and the receive side of the responder, and delays no other queue pair.
package rxe
