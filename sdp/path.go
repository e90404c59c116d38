package sdp

import (
	"fmt"
	"net"

	"viaduct/iwarp"
)

// A Path describes how a connection was made, and why in that way.
type Path struct { // [SDP-7-1] [D-71]
	SDP      bool     // whether the connection uses SDP; otherwise it uses plain TCP
	Why      string   // the reason, in a sentence
	Err      error    // error that prevented SDP, or nil
	Mapped   bool     // a resolver returned the address
	Local    net.Addr // addresses of the TCP connection
	Remote   net.Addr
	Accepted bool   // made by a listener, not by a dialer
	Layout   Layout // layout of SDP's headers
	RawHello bool   // the Hello was sent before MPA's start-up
	CRC      bool   // MPA's checksum is on

	SharedMemory bool   // the connection uses shared memory, not TCP
	TCPWhy       string // why the connection does not use shared memory; "" if it does
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

// Stats are the counters and the state of a connection.
type Stats struct {
	Counters
	// SendMode and RecvMode are the flow control modes of the two directions: Buffered, Combined or
	// Pipelined.
	SendMode, RecvMode string
	Credits            int         // number of messages that may be sent now
	SendQueue          int         // bytes written and not yet sent, read or acknowledged
	Held               int         // bytes that arrived and were not read
	Stream             iwarp.Stats // counters of the stream below

	// Credits [SDP-10.2-1].
}

// Stats returns the current counters and state.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	defer c.unlock()
	return Stats{Counters: Counters(c.m.Stats()), SendMode: c.m.SendMode().String(), RecvMode: c.m.RecvMode().String(),
		Credits: c.m.Credits(), SendQueue: c.m.SendQueue(), Held: c.m.Held(), Stream: c.qp.Stats()}
}

// A TCPConn is a plain TCP connection, with the reason why SDP was not used. A Dialer with
// ResolvePrefer, and a listener with Plain, may return a TCPConn.
type TCPConn struct {
	*net.TCPConn
	path Path
}

// Path reports how the connection was made.
func (c *TCPConn) Path() Path { return c.path }

// by records whether the stream uses shared memory.
func (p *Path) by(q *iwarp.QueuePair) {
	b := q.Path()
	p.SharedMemory, p.TCPWhy = b.SharedMemory, b.Why
}
