// Package iwarp is an RDMA stack in user space: RDMAP (RFC 5040) over DDP (RFC 5041) over MPA (RFC
// 5044, with the connection set-up of RFC 6581), and the Atomic Operations and Immediate Data of
// RFC 7306, on an ordinary TCP connection. It interoperates with the software iWARP of Linux (siw).
//
// The names are those of RDMA verbs. A [QueuePair] is an RDMAP Stream over a connection. Requests
// are posted to a QueuePair and complete on a [CompletionQueue]. Memory accessible to a peer is a
// [MemoryRegion] or a [Window] of a region, named by an STag.
//
//	qp, err := iwarp.Dial(ctx, "192.0.2.1:7174", nil)
//	mr, err := qp.Register(make([]byte, 1<<20), iwarp.RemoteWrite)
//	err = qp.Post(iwarp.SendWR{Op: iwarp.OpSend, SG: []iwarp.SGE{iwarp.Buf(hello)}})
//	c, err := qp.SendCQ().Wait(ctx)
//	...
//	qp.Close()
//
// Posting never waits for the peer and may be done by any goroutine. Memory named in a request is
// lent until its completion was polled.
//
// # Order
//
// Requests start and complete in the order of posting. An RDMA Write is visible at the peer once
// the peer has received a later Send of the same stream, or once a later Read has completed here.
// The completion of a Send or Write means only that TCP has the bytes. A request posted after a
// Read does not wait for the Read's data unless it has SendWR.Fence. But a Read beyond ORD waits
// for an earlier Read to complete, and so does every request after it: a consumer who wants to send
// meanwhile posts no more than ORD Reads at a time. There is no order between streams, nor between
// the two directions of a stream.
//
// # Closing and errors
//
// When the peer closes its direction, ours stays open, see Config.EndWithPeer. [QueuePair.Close]
// ends a stream in order, [QueuePair.Abort] at once. An error of either side ends the stream with a
// Terminate message, reported as a *[TerminateError]. Posted requests then complete with
// [StatusFlushed].
//
// # Security
//
// Streams share nothing unless the caller arranges sharing: by default each has a separate
// Protection Domain, completion queues and receive queue. docs/security.md goes through RFC 5042
// and lists the duties of the caller. Config.TLS replaces the IPsec of the RFC, because only the
// host can set up IPsec.
package iwarp

// The package as a whole keeps [RDMAP-5.5-1] [RDMAP-5.5-3] [RDMAP-3.1-5]
// [MPA-9.3-1] [MPA-9.4-1] [SEC-5.4-3] [DDP-8.4.2-1] [RDMAP-8.2.2-1].
