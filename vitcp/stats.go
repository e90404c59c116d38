package vitcp

import (
	"sync/atomic"

	"viaduct/internal/sock"
	"viaduct/samehost"
	"viaduct/vi"
)

// Stats holds the counters of a provider since it was created.
type Stats struct {
	Connections      uint64 // set up, either side
	ActiveRequests   uint64 // attempts to connect begun, client-server and peer-to-peer
	ActiveFailures   uint64 // of those, failed
	Incoming         uint64 // incoming TCP connections
	IncomingLimited  uint64 // of those, closed at once by a limit or by Allow
	IncomingTimeouts uint64 // of those, closed because no complete Connect Request arrived in time
	IncomingInvalid  uint64 // of those, closed because the bytes were no Connect Request, or a torn one
	NoMatches        uint64 // Connect No Match sent
	Rejects          uint64 // Connect Reject sent
	SecurityRefusals uint64 // peers whose security information was not accepted, either side
	ProtocolErrors   uint64 // connections reset because the peer violated the protocol
	RemoteErrors     uint64 // connections broken by an error that the peer reported

	SentMessages     uint64 // numbered messages begun
	SentSegments     uint64 // segments of any kind passed to TCP
	SentBytes        uint64 // payload passed to TCP
	SentNOPs         uint64 // of the segments, NOPs
	ReceivedMessages uint64 // completely received numbered messages
	ReceivedSegments uint64 // segments of any kind
	ReceivedBytes    uint64 // payload placed or dropped
	DroppedMessages  uint64 // received and dropped, at Unreliable Delivery
	ServedReads      uint64 // completely answered RDMA Reads of peers
}

// counters holds the running counts of Stats. Connections count their own messages, and add them
// here when they end; see linkCounters.
type counters struct {
	connections, activeRequests, activeFailures                                             atomic.Uint64
	incoming, incomingLimited, incomingTimeouts, incomingInvalid, noMatches, rejects, secur atomic.Uint64
	protocolErrors, remoteErrors                                                            atomic.Uint64
}

// Path returns the path that the bytes of the connection take.
func (l *link) Path() samehost.Path { return sock.PathOf(l.c.NetConn()) }

// Traffic returns the messages and bytes that the connection has carried.
func (l *link) Traffic() vi.Traffic {
	c := &l.count
	t := vi.Traffic{
		SentMessages: c.sentMessages.Load(), ReceivedMessages: c.receivedMessages.Load(),
		SentBytes: c.sentBytes.Load(), ReceivedBytes: c.receivedBytes.Load(),
		ServedReads: c.servedReads.Load(), Credits: -1,
	}
	if l.flow {
		t.Credits = max(0, l.credits.available())
	}
	return t
}
