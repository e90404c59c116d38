package sdp

import (
	"fmt"
	"net"

	"viaduct/iwarp"
)

// A Path says how a connection came about, and why in that way.
type Path struct { // [SDP-7-1] [D-71]
	SDP      bool     // over SDP; otherwise plain TCP
	Why      string   // in a sentence
	Err      error    // what kept SDP from being used
	Mapped   bool     // a resolver gave the address
	Local    net.Addr // of the TCP connection
	Remote   net.Addr
	Accepted bool   // by a listener, not by a dialer
	Layout   Layout // of headers
	RawHello bool   // the Hello came ahead of MPA's start-up
	CRC      bool   // MPA's checksum is on

	SharedMemory bool   // the bytes go through shared memory, not TCP
	TCPWhy       string // why they go by TCP; "" if they do not
}

// String returns the path on one line.
func (p Path) String() string {
	if !p.SDP {
		return fmt.Sprintf("tcp %v -> %v: %s", p.Local, p.Remote, p.Why)
	}
	by := "tcp: " + p.TCPWhy
	if p.SharedMemory {
		by = "shared memory"
	}
	return fmt.Sprintf("sdp %v -> %v: %s (layout %v, crc %t, %s)", p.Local, p.Remote, p.Why, p.Layout, p.CRC, by)
}

// Path reports how the connection was made.
func (c *Conn) Path() Path { return c.path }

// Stats are counters of a connection.
type Stats struct {
	Counters
	SendMode, RecvMode string      // of the two half-connections: Buffered, Combined or Pipelined
	Credits            int         // messages that may be sent now
	SendQueue          int         // bytes written and not yet sent, read or acknowledged
	Held               int         // bytes that arrived and were not read yet
	Stream             iwarp.Stats // of the stream below

	// Credits [SDP-10.2-1].
}

// Stats returns the counters at this moment: bytes by mechanism, mode changes,
// credit stalls, advertisements, cancels.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	defer c.unlock()
	return Stats{Counters: Counters(c.m.Stats()), SendMode: c.m.SendMode().String(), RecvMode: c.m.RecvMode().String(),
		Credits: c.m.Credits(), SendQueue: c.m.SendQueue(), Held: c.m.Held(), Stream: c.qp.Stats()}
}

// A TCPConn is the result of a dial with fallback, or of a listener for both, if SDP was not used:
// plain TCP that reports why.
type TCPConn struct {
	*net.TCPConn
	path Path
}

// Path reports how the connection was made.
func (c *TCPConn) Path() Path { return c.path }

// by notes how the bytes go.
func (p *Path) by(q *iwarp.QueuePair) {
	b := q.Path()
	p.SharedMemory, p.TCPWhy = b.SharedMemory, b.Why
}
