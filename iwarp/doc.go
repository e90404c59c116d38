// Package iwarp is an RDMA stack in user space: RDMAP (RFC 5040) over DDP (RFC
// 5041) over MPA (RFC 5044, with the connection set-up of RFC 6581), and the
// Atomic Operations and Immediate Data of RFC 7306, on an ordinary TCP
// connection. It interoperates with the software iWARP of Linux (siw).
//
// Names are those of RDMA verbs. A [QueuePair] is one RDMAP Stream, which
// is one connection. Requests are posted to it and complete on a
// [CompletionQueue]; memory that a peer may touch is a [MemoryRegion] or a
// [Window] of one, named by an STag.
//
//	qp, err := iwarp.Dial(ctx, "192.0.2.1:7174", nil)
//	mr, err := qp.Register(make([]byte, 1<<20), iwarp.RemoteWrite)
//	err = qp.Post(iwarp.SendWR{Op: iwarp.OpSend, SG: []iwarp.SGE{iwarp.Buf(hello)}})
//	c, err := qp.SendCQ().Wait(ctx)
//	...
//	qp.Close()
//
// Posting never waits for the peer and may be done by any goroutine. Memory
// named in a request is lent until its completion was taken from the queue.
//
// # Order
//
// Requests start in the order they were posted and complete in that order.
// An RDMA Write is known to be visible at the peer when a later Send of the
// same stream was received there, or a later Read completed here. A Send or
// Write that completes has been handed to TCP, no more. A request behind a
// Read does not wait for its data unless it asks to with SendWR.Fence. But a
// Read beyond ORD waits for an earlier one to complete, and so does every request
// behind it; [ReadQueue] is for consumers that want to send meanwhile. There
// is no order between streams, nor between the two directions of one.
//
// # Closing and errors
//
// A peer that closes its direction leaves ours open, see Config.EndWithPeer.
// [QueuePair.Close] ends a stream in order, [QueuePair.Abort] at once. An error
// of either side ends it with a Terminate message, shown as *[TerminateError].
// Whatever was posted then completes with [StatusFlushed].
//
// # Security
//
// Nothing is shared between streams unless the caller says so: each has its
// own Protection Domain, completion queues and receive queue by default. docs/security.md
// goes through RFC 5042 and says what is left to the caller. Config.TLS takes
// the place of the RFC's IPsec, which only the host can set up.
package iwarp

// The package as a whole keeps [RDMAP-5.5-1] [RDMAP-5.5-3] [RDMAP-3.1-5]
// [MPA-9.3-1] [MPA-9.4-1] [SEC-5.4-3] [DDP-8.4.2-1] [RDMAP-8.2.2-1].
