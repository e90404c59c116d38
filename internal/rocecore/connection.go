package rocecore

import (
	"viaduct/internal/wire/ib"
)

// A Connection is one end of a reliable or unreliable connection.
type Connection struct {
	cfg    Config
	host   Host
	failed bool

	req   requester
	resp  responder
	count Counters
}

// Counters count what has happened. They only grow.
type Counters struct {
	SentPackets, ReceivedPackets uint64
	Resent                       uint64 // packets that went again
	Probes                       uint64 // of these, to find out what is missing
	Timeouts                     uint64
	SentNAKs, ReceivedNAKs       uint64 // sequence errors
	SentRNR, ReceivedRNR         uint64
	Duplicates                   uint64 // requests that were executed before
	Refused                      uint64 // packets of another partition or transport
}

// New returns a connection that is ready to receive.
func New(host Host, cfg Config) *Connection {
	if cfg.PKey == 0 {
		cfg.PKey = ib.DefaultPKey
	}
	c := &Connection{cfg: cfg, host: host}
	c.resp.expected = cfg.PSN
	c.resp.in.prev = none
	c.resp.served = make([]served, cfg.MaxServed)
	return c
}

// none stands for no packet before.
const none = -1

// Counters returns the counters at this moment.
func (c *Connection) Counters() Counters { return c.count }

// Failed reports whether the connection is in error.
func (c *Connection) Failed() bool { return c.failed }

func (c *Connection) reliable() bool { return c.cfg.Transport == ib.RC }

// Receive handles a packet of the peer, whose invariant CRC and address were checked. Its payload is
// not kept.
func (c *Connection) Receive(now Time, p *ib.Packet) {
	if c.failed {
		return
	}
	if p.Opcode.Transport() != c.cfg.Transport || !ib.PKeyMatches(p.PKey, c.cfg.PKey) { // [ROCE-OP-3] [ROCE-BTH-4]
		c.count.Refused++
		return
	}
	c.count.ReceivedPackets++
	switch {
	case !p.Opcode.Kind().Request():
		c.complete(now, p)
	case c.reliable():
		c.respond(p)
	default:
		c.assemble(p)
	}
}

// Transmit adds packets to out, responses and requests by turns, at most limit of each, and reports
// whether there are more that could go now. In error only responses go: the last one says why.
func (c *Connection) Transmit(now Time, out *Output, limit int) (more bool) {
	for range limit {
		response := c.transmitResponse(out)
		if !c.transmitRequest(now, out) && !response {
			return false
		}
	}
	return true
}

// Deadline returns the time at which Tick is due, and false if nothing but a packet or a request can
// change anything.
func (c *Connection) Deadline() (at Time, ok bool) {
	if c.failed {
		return 0, false
	}
	return c.req.deadline()
}

// SetAccess changes what the peer may do, and the code of the time that it waits if it finds no
// receive.
func (c *Connection) SetAccess(a Access, rnrTimer uint8) { c.cfg.Access, c.cfg.RNRTimer = a, rnrTimer }

// Fail puts the connection into error: what is posted is flushed.
func (c *Connection) Fail() { c.fail(Flushed) }

// fail puts the connection into error. The oldest request ends with s, all others with Flushed.
// [ROCE-REQ-13] [ROCE-RESP-16]
func (c *Connection) fail(s Status) {
	if c.failed {
		return
	}
	c.failed = true
	for i := 0; c.req.items.len() > 0; i++ {
		it := c.req.items.pop()
		st := Flushed
		if i == 0 {
			st = s
		}
		c.host.RequestDone(it.r, Completion{Status: st})
	}
	c.resp.in.giveBack(c.host, Flushed)
	c.host.Failed(s)
}
