// Package roce implements RoCEv2 over an ordinary UDP socket: the reliable connection, the
// unreliable connection and the unreliable datagram of InfiniBand, in UDP datagrams to port 4791.
// Peers are the Linux kernel's rxe, adapters in RoCE mode, and programs that use package roce. The
// package needs no device, no kernel module and no privileges.
//
// Names are those of RDMA verbs, and equal those of package iwarp where the idea is the same. A
// [Device] is an address of this host. A [QueuePair] is connected with the [Endpoint] of its peer;
// the two sides exchange their Endpoints by any means, for example over TCP. Memory that a peer may
// access is a [MemoryRegion], which the peer names by its key.
//
//	dev, err := roce.Open(netip.MustParseAddr("192.0.2.1"))
//	qp, err := dev.NewQueuePair(roce.Config{})
//	mr, err := qp.PD().Register(make([]byte, 1<<20), roce.RemoteWrite)
//	exchange(qp.Local(), mr.Key(), mr.Addr())       // over TCP, for example
//	err = qp.Connect(peer)
//	err = qp.Post(roce.SendWR{Op: roce.OpSend, SG: []roce.SGE{roce.Buf(hello)}})
//	c, err := qp.SendCQ().Wait(ctx)
//
// Posting never waits for the peer, and any goroutine may post. The memory of a request is lent to
// the queue pair until the request's completion was taken from the queue. If a request of a
// reliable connection completes with StatusOK, the peer has executed the request.
//
// # Errors
//
// An error of either side puts a connected queue pair into the error state. The request that caused
// the error completes with the status of the error, all other posted requests and receives with
// StatusFlushed. A queue pair gives up a silent peer after Config.Retries + 1 times Config.Timeout.
//
// # Security
//
// RoCEv2 has no authentication: whoever can send packets from the address of a peer can do
// everything the peer may. Keys, queue pair numbers and first packet numbers are random. Only half
// of the bits of the invariant CRC of IPv4 packets are checked, because the CRC covers the IPv4
// identification, which a socket does not report.
//
// # What is missing
//
// Connection management (rdma_cm), shared receive queues, memory windows, XRC, automatic path
// migration, congestion notification and the extended transport operations. On systems other than
// Linux the kernel chooses an IPv4 identification that the CRC does not cover, so that only peers
// with package roce accept the packets; use IPv6 there. On Linux, several programs of one user can
// have port 4791 of an address; elsewhere only one can. The kernel's rxe takes the port of all
// addresses of its host.
package roce
