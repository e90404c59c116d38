// Package roce speaks RoCEv2 from an ordinary UDP socket: the reliable connection, the unreliable
// connection and the unreliable datagram of InfiniBand, in UDP datagrams to port 4791. Its peers are
// the Linux kernel's rxe, adapters in RoCE mode, and programs that use this package. It needs no
// device, no kernel module and no privileges.
//
// Names are those of RDMA verbs, and of package iwarp where the idea is the same. A [Device] is an
// address of this host. A [QueuePair] is connected by telling each side, by whatever means, the
// [Endpoint] of the other; memory that a peer may touch is a [MemoryRegion], named by a key.
//
//	dev, err := roce.Open(netip.MustParseAddr("192.0.2.1"))
//	qp, err := dev.NewQueuePair(roce.Config{})
//	mr, err := qp.PD().Register(make([]byte, 1<<20), roce.RemoteWrite)
//	tell(qp.Local(), mr.Key(), mr.Addr())           // over TCP, for instance
//	err = qp.Connect(peer)
//	err = qp.Post(roce.SendWR{Op: roce.OpSend, SG: []roce.SGE{roce.Buf(hello)}})
//	c, err := qp.SendCQ().Wait(ctx)
//
// Posting never waits for the peer and may be done by any goroutine. Memory named in a request is lent
// until its completion was taken from the queue. A request of a reliable connection that completes with
// StatusOK was executed by the peer.
//
// # Errors
//
// An error of either side puts a connected queue pair into error: the request that is to blame completes
// with its status, everything else that is posted with StatusFlushed. A silent peer is given up after
// Config.Timeout times one more than Config.Retries.
//
// # Security
//
// RoCEv2 has no authentication: who can send packets with the address of a peer can do what the peer may.
// Keys, numbers of queue pairs and first packet numbers are drawn at random. The invariant CRC of IPv4
// packets is checked as far as a socket allows, which is half of its bits.
//
// # What is missing
//
// Connection management (rdma_cm), shared receive queues, memory windows, multicast, XRC, automatic path
// migration, congestion notification and the extended transport operations. On systems other than Linux
// IPv4 packets have an identification that their CRC does not cover, so that only peers of this package
// take them; use IPv6. One process has port 4791 of an address. The kernel's rxe takes the port of all
// addresses of its host.
package roce
