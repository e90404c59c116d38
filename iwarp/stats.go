package iwarp

import (
	"sync/atomic"
	"time"

	"viaduct/internal/counter"
)

// Stats are counters of a stream. All except SRQHeld, SendPosted and MULPDU only grow.
type Stats struct {
	SentFPDUs, ReceivedFPDUs       uint64 // FPDUs handed to TCP, and FPDUs found valid
	SentBytes, ReceivedBytes       uint64 // payload bytes of these FPDUs
	SentMessages, ReceivedMessages uint64 // messages whose last segment was sent or received
	PlacedBytes                    uint64 // bytes written to registered memory by the peer's Writes
	ServedReads, ServedReadBytes   uint64 // the peer's Reads that were answered
	ServedAtomics                  uint64 // the peer's Atomic Operations that were answered

	// The next three counters count work that brings the consumer little. An administrator can end
	// a stream whose peer does nothing else.
	ReceivedEmpty uint64 // messages without payload
	ReceivedTiny  uint64 // segments that are not the last of their message and carry less than 64 bytes
	NoReceive     uint64 // messages that found no receive posted

	SRQTaken uint64 // buffers taken from a shared receive queue
	SRQHeld  uint64 // buffers counted in SRQTaken whose completion was not polled

	SendPosted uint64 // requests of the send queue that are not complete

	MULPDU int // largest size in bytes of the ULPDUs sent now, which follows the size of TCP segments

	// LastActivity is the time of the last sending or receiving. If the consumer polls, the time of
	// received traffic is recorded by its next empty poll or wait, or by this call.
	LastActivity time.Time

	// Requirements: ReceivedEmpty [SEC-6.4.4-1], NoReceive [DDP-7.1-3], MULPDU [MPA-3-2] [DDP-3-1].
}

type counters struct {
	// counted only by the goroutine with the send role
	sentFPDUs, sentBytes, sentMessages      counter.Counter
	servedReads, servedBytes, servedAtomics counter.Counter
	// counted only by the goroutine with the receive role
	recvBytes, recvMessages, placed counter.Counter
	empty, tiny                     counter.Counter
	// counted by any goroutine
	noReceive, srqTaken atomic.Uint64
}

// Stats returns the counters at this moment.
func (q *QueuePair) Stats() Stats {
	c := &q.stats
	return Stats{
		SentFPDUs: c.sentFPDUs.Load(), ReceivedFPDUs: q.active.received.Load(),
		SentBytes: c.sentBytes.Load(), ReceivedBytes: c.recvBytes.Load(),
		SentMessages: c.sentMessages.Load(), ReceivedMessages: c.recvMessages.Load(),
		PlacedBytes: c.placed.Load(),
		ServedReads: c.servedReads.Load(), ServedReadBytes: c.servedBytes.Load(),
		ServedAtomics: c.servedAtomics.Load(),
		ReceivedEmpty: c.empty.Load(), ReceivedTiny: c.tiny.Load(), NoReceive: c.noReceive.Load(),
		SRQTaken: c.srqTaken.Load(), SRQHeld: uint64(max(0, q.recvs.srqHeld.Load())),
		SendPosted:   q.sends.posted(),
		MULPDU:       q.mulpdu(),
		LastActivity: q.active.last(),
	}
}

// mulpdu returns the largest size in bytes of sent ULPDUs.
func (q *QueuePair) mulpdu() int { return int(q.tx.mss.mulpdu.Load()) }
