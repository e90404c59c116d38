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

// Counters counts the events of a queue pair. The counters never decrease.
type Counters struct {
	SentPackets, ReceivedPackets uint64
	Resent                       uint64 // retransmitted packets
	Probes                       uint64 // part of Resent: packets sent early to detect a loss
	Timeouts                     uint64
	SentNAKs, ReceivedNAKs       uint64 // sequence errors
	SentRNR, ReceivedRNR         uint64
	Duplicates                   uint64 // requests received again after they were executed
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

// none is the value of inbound.prev before the first packet.
const none = -1

// Counters returns the current counters.
func (c *Connection) Counters() Counters { return c.count }

// Failed reports whether the connection is in the error state.
func (c *Connection) Failed() bool { return c.failed }

func (c *Connection) reliable() bool { return c.cfg.Transport == ib.RC }

// Receive handles a packet of the peer, unless the connection has failed. The caller has checked
// the invariant CRC and the source address. Receive keeps no reference to p or its payload.
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

// Transmit appends packets to out, requests and responses in turn, at most limit of each. A request
// comes first, because it may be the reply for which the peer waits. more reports whether further
// packets can be sent now. In the error state Transmit sends only queued responses, the last of
// which is the NAK with the cause, if the peer caused the error.
func (c *Connection) Transmit(now Time, out *Output, limit int) (more bool) {
	for range limit {
		request := c.transmitRequest(now, out)
		if !c.transmitResponse(out) && !request {
			return false
		}
	}
	return true
}

// Acknowledges reports whether the only packet to send now is a positive acknowledgement.
func (c *Connection) Acknowledges() bool {
	r, q := &c.resp.responses, &c.req
	return r.len() == 1 && r.at(0).kind == ib.Ack && r.at(0).syndrome == ib.ACK && !q.timer.probe && q.cursor == q.items.len()
}

// Deadline returns the time when Tick is due. ok is false in the error state, and if only a packet
// or a request can change the state.
func (c *Connection) Deadline() (at Time, ok bool) {
	if c.failed {
		return 0, false
	}
	return c.req.deadline()
}

// SetAccess changes the rights of the peer, and the timer code of RNR NAKs.
func (c *Connection) SetAccess(a Access, rnrTimer uint8) { c.cfg.Access, c.cfg.RNRTimer = a, rnrTimer }

// Fail puts the connection into the error state, which flushes all posted requests.
func (c *Connection) Fail() { c.fail(Flushed) }

// fail puts the connection into the error state. The oldest request completes with s, all others
// with Flushed. [ROCE-REQ-13] [ROCE-RESP-16]
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
