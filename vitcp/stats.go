package vitcp

import (
	"sync/atomic"

	"viaduct/internal/sock"
	"viaduct/samehost"
	"viaduct/vi"
)

// Stats holds the counters of a provider since it was created.
type Stats struct {
	Connections      uint64 // connections set up, by either side
	ActiveRequests   uint64 // connection attempts begun, client-server and peer-to-peer
	ActiveFailures   uint64 // failed attempts among them
	Incoming         uint64 // incoming TCP connections
	IncomingLimited  uint64 // incoming connections closed at once by a limit or by Allow
	IncomingTimeouts uint64 // incoming connections closed because no complete Connect Request arrived in time
	IncomingInvalid  uint64 // incoming connections closed because the bytes were no complete Connect Request
	NoMatches        uint64 // sent Connect No Match messages
	Rejects          uint64 // sent Connect Reject messages
	SecurityRefusals uint64 // peers whose security information was refused, by either side
	ProtocolErrors   uint64 // connections reset because the peer violated the protocol
	RemoteErrors     uint64 // connections broken by an error that the peer reported

	SentMessages     uint64 // numbered messages begun
	SentSegments     uint64 // segments of any kind passed to TCP
	SentBytes        uint64 // payload passed to TCP
	SentNOPs         uint64 // NOPs among the segments
	ReceivedMessages uint64 // completely received numbered messages
	ReceivedSegments uint64 // received segments of any kind
	ReceivedBytes    uint64 // received payload, placed or dropped
	DroppedMessages  uint64 // messages that failed and were dropped; at the reliable levels the connection broke
	ServedReads      uint64 // completely answered RDMA Reads of peers
}

// counters holds the current values of Stats. A connection counts messages in linkCounters and adds
// them here at its end.
type counters struct {
	connections, activeRequests, activeFailures                                             atomic.Uint64
	incoming, incomingLimited, incomingTimeouts, incomingInvalid, noMatches, rejects, secur atomic.Uint64
	protocolErrors, remoteErrors                                                            atomic.Uint64
}

// Path reports whether the bytes of the connection travel by TCP or through shared memory.
func (l *link) Path() samehost.Path { return sock.PathOf(l.c.NetConn()) }

// Traffic returns the messages and bytes the connection has carried.
func (l *link) Traffic() vi.Traffic {
	c := &l.count
	t := vi.Traffic{
		SentMessages: c.sentMessages.Load(), ReceivedMessages: c.receivedMessages.Load(),
		SentBytes: c.sentBytes.Load(), ReceivedBytes: c.receivedBytes.Load(),
		ServedReads: c.servedReads.Load(), Credits: -1,
	}
	if l.flow.on {
		t.Credits = max(0, l.flow.credits.available())
	}
	return t
}
