package rocecm

import (
	"math/rand/v2"
	"net/netip"

	"viaduct/internal/wire/ib"
)

// An End is the reason why a connection ended, or could not be established.
type End uint8

// The reasons.
const (
	Rejected     End = iota // the peer rejected the connection; the message has the reason
	Unreachable             // the peer does not answer
	Disconnected            // the peer ended the connection
)

// A Handler handles the events of connections. The Manager calls a Handler from its own methods,
// with the locks held by the caller of the Manager. A Handler may call Reject, and no other method
// of the Manager.
type Handler interface {
	// Serves reports whether there is a service for a REQ or SIDR_REQ of the peer at address from.
	Serves(from netip.Addr, m *ib.CM) bool
	// Requested handles a REQ or SIDR_REQ of the peer at address from. It returns false if there is
	// no such service. Otherwise the driver answers with Accept or Reject, at any time.
	Requested(c *Conn, from netip.Addr, m *ib.CM) bool
	// Replied handles a REP or SIDR_REP: the peer accepts. The driver answers a REP with Confirm or
	// Reject, and a SIDR_REP not at all.
	Replied(c *Conn, m *ib.CM)
	// Established handles an RTU: the peer has confirmed.
	Established(c *Conn)
	// Ended reports that the connection no longer exists. m is the peer's message if the peer
	// rejected the connection, and nil otherwise.
	Ended(c *Conn, why End, m *ib.CM)
}

// A Message is a message to be sent.
type Message struct {
	From, To netip.Addr
	CM       ib.CM
}

// A Manager manages the connections of one or more ports.
type Manager struct {
	handler Handler
	conns   map[uint32]*Conn // by local number
	asked   map[asked]*Conn  // requests of peers, to recognize repeated ones
	out     []Message
}

// An asked identifies the request of a peer.
type asked struct {
	peer   netip.Addr
	kind   ib.CMKind
	remote uint32
}

// maxAsked limits the number of remembered requests of peers. Further requests are ignored.
const maxAsked = 4096

// New returns a manager without connections.
func New(h Handler) *Manager {
	return &Manager{handler: h, conns: map[uint32]*Conn{}, asked: map[asked]*Conn{}}
}

// Take returns the messages to send, and removes them from the Manager. The result is nil if there
// are none.
func (m *Manager) Take() []Message {
	out := m.out
	m.out = nil
	return out
}

func (m *Manager) send(c *Conn, msg ib.CM) { m.out = append(m.out, Message{c.own, c.peer, msg}) }

// Len returns the number of connections in any state.
func (m *Manager) Len() int { return len(m.conns) }

// add gives a connection an unused local number.
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

// Connect requests a connection from the port at address own to a peer. req is a REQ or a SIDR_REQ;
// Connect sets its transaction and number. owner becomes Conn.Owner. [ROCE-CM-11]
func (m *Manager) Connect(now Time, own, to netip.Addr, req ib.CM, owner any) *Conn {
	c := &Conn{Owner: owner, own: own, peer: to, kind: req.Kind, tid: rand.Uint64()}
	m.add(c)
	req.TID, req.Local = c.tid, c.local
	c.repeat(now, req, most)
	m.send(c, req)
	return c
}

// Accept answers a request. rep is a REP or a SIDR_REP; Accept sets its transaction and numbers. It
// returns false, and sends nothing, if c awaits no answer, for example because the peer has given
// up.
func (m *Manager) Accept(now Time, c *Conn, rep ib.CM) bool {
	if c.state != requested {
		return false
	}
	rep.TID, rep.Local, rep.Remote = c.tid, c.local, c.remote
	if c.kind == ib.CMSIDRReq {
		rep.Local = c.remote // a SIDR request has one number
		c.state = accepting  // remembered until repetitions of the request are over
		c.again, c.left, c.due = rep, 0, now+most*lastGap
	} else {
		c.state = accepting
		c.repeat(now, rep, most)
	}
	m.send(c, rep)
	return true
}

// Confirm answers a REP, which establishes the connection. It returns false, and sends nothing, if
// no REP awaits an answer, for example because the peer has given up.
func (m *Manager) Confirm(c *Conn) bool {
	if c.state != replied {
		return false
	}
	c.state = established
	m.send(c, c.message(ib.CMRTU))
	return true
}

// Reject ends a connection, with a reason and private data for the peer. It does nothing to a
// connection that was accepted, is established or has ended. The Handler gets no more events of c.
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
			r = ib.CM{Kind: ib.CMSIDRRep, TID: c.tid, Local: c.remote, Private: private,
				SIDR: ib.CMService{Status: sidrRejected}}
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
	sidrNoService = 1 // the service is not supported
	sidrRejected  = 2
)

// Disconnect ends a connection in any state. The Handler gets no more events of c. An accepted SIDR
// request stays until Tick removes it.
func (m *Manager) Disconnect(now Time, c *Conn) {
	switch c.state {
	case requesting:
		m.Reject(c, ib.RejectTimeout, nil)
	case requested, replied:
		m.Reject(c, ib.RejectConsumer, nil)
	case accepting, established:
		if c.kind == ib.CMSIDRReq {
			return // the answer may have to be repeated
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

// Deadline returns the time when Tick is due; ok is false if no message can become overdue.
func (m *Manager) Deadline() (at Time, ok bool) {
	for _, c := range m.conns {
		if c.due != 0 && (!ok || c.due < at) {
			at, ok = c.due, true
		}
	}
	return at, ok
}

// Tick retransmits every message whose answer is overdue. It ends a connection whose message was
// sent as often as allowed; the Handler gets Ended with Unreachable, unless this side is
// disconnecting. [ROCE-CM-7]
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
