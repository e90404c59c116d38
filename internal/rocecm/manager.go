package rocecm

import (
	"math/rand/v2"
	"net/netip"

	"viaduct/internal/wire/ib"
)

// An End is why a connection has ended, or could not be made.
type End uint8

// The ends.
const (
	Rejected     End = iota // the peer rejects; the message has the reason
	Unreachable             // the peer does not answer
	Disconnected            // the peer has ended the connection
)

// A Handler acts on the events of connections. Methods of the Manager call it, with whatever lock their
// caller holds; it may call Reject, and no other method of the Manager.
type Handler interface {
	// Requested tells that a peer asks for a connection, by a REQ or SIDR_REQ. It is false if there is no
	// such service. The driver answers with Accept or Reject.
	Requested(c *Conn, from netip.Addr, m *ib.CM) bool
	// Replied tells that the peer accepts, by a REP or SIDR_REP. A REP is answered with Confirm or Reject.
	Replied(c *Conn, m *ib.CM)
	// Established tells that the peer has confirmed.
	Established(c *Conn)
	// Ended tells that the connection is no more; m is nil unless the peer has rejected it.
	Ended(c *Conn, why End, m *ib.CM)
}

// A Message is one to be sent.
type Message struct {
	From, To netip.Addr
	CM       ib.CM
}

// A Manager has the connections of one or more ports.
type Manager struct {
	handler Handler
	conns   map[uint32]*Conn // by the local number
	asked   map[asked]*Conn  // what peers have asked for
	out     []Message
}

// An asked identifies what a peer has asked for.
type asked struct {
	peer   netip.Addr
	kind   ib.CMKind
	remote uint32
}

// maxAsked bounds what strangers can ask for.
const maxAsked = 4096

// New returns a manager without connections.
func New(h Handler) *Manager {
	return &Manager{handler: h, conns: map[uint32]*Conn{}, asked: map[asked]*Conn{}}
}

// Take returns the messages to be sent.
func (m *Manager) Take() []Message {
	out := m.out
	m.out = nil
	return out
}

func (m *Manager) send(c *Conn, msg ib.CM) { m.out = append(m.out, Message{c.own, c.peer, msg}) }

// Len returns the number of connections that are remembered.
func (m *Manager) Len() int { return len(m.conns) }

// add gives a connection its local number.
func (m *Manager) add(c *Conn) {
	for {
		c.local = rand.Uint32()
		if c.local != 0 && m.conns[c.local] == nil {
			m.conns[c.local] = c
			return
		}
	}
}

func (m *Manager) remove(c *Conn) {
	c.state = over
	c.answered()
	delete(m.conns, c.local)
	if k := (asked{c.peer, c.kind, c.remote}); m.asked[k] == c {
		delete(m.asked, k)
	}
}

// Connect asks a peer for a connection, from the port of an address. The message is a REQ or a
// SIDR_REQ without numbers. [ROCE-CM-11]
func (m *Manager) Connect(now Time, own, to netip.Addr, req ib.CM, owner any) *Conn {
	c := &Conn{Owner: owner, own: own, peer: to, kind: req.Kind, tid: rand.Uint64()}
	m.add(c)
	req.TID, req.Local = c.tid, c.local
	c.repeat(now, req, most)
	m.send(c, req)
	return c
}

// Accept answers a request; the message is a REP or a SIDR_REP without numbers. It is false if the peer
// has given up.
func (m *Manager) Accept(now Time, c *Conn, rep ib.CM) bool {
	if c.state != requested {
		return false
	}
	rep.TID, rep.Local, rep.Remote = c.tid, c.local, c.remote
	if c.kind == ib.CMSIDRReq {
		rep.Local = c.remote // a SIDR has one number
		c.state = accepting  // kept for a request that comes again
		c.again, c.left, c.due = rep, 0, now+most*lastGap
	} else {
		c.state = accepting
		c.repeat(now, rep, most)
	}
	m.send(c, rep)
	return true
}

// Confirm answers a REP: the connection is established. It is false if the peer has given up.
func (m *Manager) Confirm(c *Conn) bool {
	if c.state != replied {
		return false
	}
	c.state = established
	m.send(c, c.message(ib.CMRTU))
	return true
}

// Reject ends a connection that is not established. After it nothing is told of c.
func (m *Manager) Reject(c *Conn, reason uint16, private []byte) {
	r := c.message(ib.CMRej)
	r.Reason, r.Private = reason, private
	switch c.state {
	case requesting:
		r.About = ib.AboutOther
	case replied:
		r.About = ib.AboutRep
	case requested:
		if c.kind == ib.CMSIDRReq {
			r = ib.CM{Kind: ib.CMSIDRRep, TID: c.tid, Local: c.remote, Private: private, SIDR: ib.CMService{Status: sidrRejected}}
		}
	case accepting, established, disconnecting, over:
		return
	}
	if c.kind != ib.CMSIDRReq || c.state == requested {
		m.send(c, r)
	}
	m.remove(c)
}

// Statuses of a SIDR_REP.
const (
	sidrNoService = 1 // not supported
	sidrRejected  = 2
)

// Disconnect ends a connection, at whatever point it is. After it nothing is told of c.
func (m *Manager) Disconnect(now Time, c *Conn) {
	switch c.state {
	case requesting:
		m.Reject(c, ib.RejectTimeout, nil)
	case requested, replied:
		m.Reject(c, ib.RejectConsumer, nil)
	case accepting, established:
		if c.kind == ib.CMSIDRReq {
			return // the answer may have to go again
		}
		c.state = disconnecting
		c.tid = rand.Uint64()
		d := c.message(ib.CMDReq)
		d.QPN = c.peerQPN
		c.repeat(now, d, mostDReq)
		m.send(c, d)
	case disconnecting, over:
	}
}

// Deadline returns when Tick is due; ok is false if nothing waits for an answer.
func (m *Manager) Deadline() (at Time, ok bool) {
	for _, c := range m.conns {
		if c.due != 0 && (!ok || c.due < at) {
			at, ok = c.due, true
		}
	}
	return at, ok
}

// Tick sends every message again whose answer is overdue. It ends a connection whose message was sent
// as often as is allowed.
// [ROCE-CM-7]
func (m *Manager) Tick(now Time) {
	for _, c := range m.conns {
		if c.due == 0 || c.due > now {
			continue
		}
		if c.left > 0 {
			c.left--
			c.gap = min(2*c.gap, lastGap)
			c.due = now + c.gap
			m.send(c, c.again)
			continue
		}
		told := c.state == disconnecting || c.kind == ib.CMSIDRReq && c.state == accepting
		m.remove(c)
		if !told {
			m.handler.Ended(c, Unreachable, nil)
		}
	}
}
