package rocecm

import (
	"net/netip"

	"viaduct/internal/wire/ib"
)

// Expects reports whether a message of the peer at address from belongs to a connection of the
// manager, or asks for a service that the handler has. Receive answers all other messages with an
// error or not at all.
func (m *Manager) Expects(from netip.Addr, msg *ib.CM) bool {
	switch msg.Kind {
	case ib.CMReq, ib.CMSIDRReq:
		return m.asked[asked{from, msg.Kind, msg.Local}] != nil || m.handler.Serves(from, msg)
	case ib.CMSIDRRep:
		return m.conns[msg.Local] != nil
	}
	return m.conn(from, msg) != nil
}

// conn returns the connection that a message names, or nil.
func (m *Manager) conn(from netip.Addr, msg *ib.CM) *Conn {
	if msg.Kind == ib.CMRej && msg.Remote == 0 { // the peer gave up before it knew our number
		return m.asked[asked{from, ib.CMReq, msg.Local}]
	}
	return m.conns[msg.Remote]
}

// Receive handles a message of the peer at address from to the port at address own. It ignores a
// message that does not fit the state of the connection.
func (m *Manager) Receive(now Time, own, from netip.Addr, msg *ib.CM) {
	switch msg.Kind {
	case ib.CMReq, ib.CMSIDRReq:
		m.request(own, from, msg)
		return
	case ib.CMSIDRRep:
		m.serviceReply(from, msg)
		return
	}
	c := m.conn(from, msg)
	if c != nil && (c.peer != from || c.kind != ib.CMReq || c.remote != 0 && c.remote != msg.Local) {
		return
	}
	if c == nil {
		m.unknown(own, from, msg)
		return
	}
	switch msg.Kind {
	case ib.CMRep:
		m.reply(c, msg)
	case ib.CMRTU:
		if c.state == accepting {
			c.state = established
			c.answered()
			m.handler.Established(c)
		}
	case ib.CMMRA: // [ROCE-CM-10]
		if c.due != 0 && c.state != disconnecting {
			c.due = now + c.gap + ackTime(msg.Service)
		}
	case ib.CMRej:
		m.rejected(c, msg)
	case ib.CMDReq:
		m.disconnected(c, msg)
	case ib.CMDRep:
		if c.state == disconnecting {
			m.remove(c)
		}
	}
}

// ackTime returns the time a timer code stands for. A code above 24, the greatest code that the
// kernel uses, counts as 24.
func ackTime(code uint8) Time {
	const longest = 24
	return 4096 << min(code, longest)
}

// serviceTime is the code of the time a program may take to answer: 68 seconds, as in the kernel's
// rdma_cm.
const serviceTime = 24

// request handles a REQ or SIDR_REQ. It answers a repeated request like the first. [ROCE-CM-8]
func (m *Manager) request(own, from netip.Addr, msg *ib.CM) {
	k := asked{from, msg.Kind, msg.Local}
	if c := m.asked[k]; c != nil {
		switch c.state {
		case requested:
			m.takeTime(c)
		case accepting:
			m.send(c, c.again)
		}
		return
	}
	c := &Conn{state: requested, own: own, peer: from, kind: msg.Kind, tid: msg.TID,
		remote: msg.Local, peerQPN: msg.Req.QPN}
	if len(m.asked) >= maxAsked {
		return
	}
	m.add(c)
	m.asked[k] = c
	if !m.handler.Requested(c, from, msg) { // [ROCE-CM-6]
		m.refuse(c)
		return
	}
	if c.state == requested {
		m.takeTime(c)
	}
}

// takeTime sends an MRA: the request has arrived, and the answer will take time. There is no MRA
// for a SIDR request. [ROCE-CM-10]
func (m *Manager) takeTime(c *Conn) {
	if c.kind == ib.CMReq {
		r := c.message(ib.CMMRA)
		r.Service = serviceTime
		m.send(c, r)
	}
}

// refuse answers a request for a service that does not exist.
func (m *Manager) refuse(c *Conn) {
	if c.state != requested {
		return
	}
	r := c.message(ib.CMRej)
	r.Reason = ib.RejectInvalidServiceID
	if c.kind == ib.CMSIDRReq {
		r = ib.CM{Kind: ib.CMSIDRRep, TID: c.tid, Local: c.remote, SIDR: ib.CMService{Status: sidrNoService}}
	}
	m.send(c, r)
	m.remove(c)
}

// reply handles a REP. A repeated REP gets an MRA before Confirm, and an RTU after it. [ROCE-CM-8]
func (m *Manager) reply(c *Conn, msg *ib.CM) {
	switch c.state {
	case requesting:
		c.state, c.remote, c.peerQPN = replied, msg.Local, msg.Rep.QPN
		c.answered()
		m.handler.Replied(c, msg)
	case replied:
		r := c.message(ib.CMMRA)
		r.About, r.Service = ib.AboutRep, serviceTime
		m.send(c, r)
	case established:
		m.send(c, c.message(ib.CMRTU))
	}
}

// rejected handles a REJ. A REJ of an established connection counts as its end.
func (m *Manager) rejected(c *Conn, msg *ib.CM) {
	switch c.state {
	case requesting, requested, replied, accepting:
		m.remove(c)
		m.handler.Ended(c, Rejected, msg)
	case established:
		m.remove(c)
		m.handler.Ended(c, Disconnected, nil)
	case disconnecting:
		m.remove(c)
	}
}

// disconnected handles a DREQ: it sends a DREP and ends the connection. [ROCE-CM-9]
func (m *Manager) disconnected(c *Conn, msg *ib.CM) {
	was := c.state
	c.tid = msg.TID
	m.send(c, c.message(ib.CMDRep))
	m.remove(c)
	switch was {
	case accepting, replied, established:
		m.handler.Ended(c, Disconnected, nil)
	}
}

// unknown handles a message for a connection that does not exist. It answers a repeated DREQ, and
// rejects a REP, because the peer would otherwise retransmit. [ROCE-CM-9]
func (m *Manager) unknown(own, from netip.Addr, msg *ib.CM) {
	r := ib.CM{TID: msg.TID, Local: msg.Remote, Remote: msg.Local}
	switch msg.Kind {
	case ib.CMDReq:
		r.Kind = ib.CMDRep
	case ib.CMRep:
		r.Kind, r.About, r.Reason = ib.CMRej, ib.AboutRep, ib.RejectTimeout
	default:
		return
	}
	m.out = append(m.out, Message{own, from, r})
}

// serviceReply handles a SIDR_REP. It ignores a SIDR_REP without a waiting request.
func (m *Manager) serviceReply(from netip.Addr, msg *ib.CM) {
	c := m.conns[msg.Local]
	if c == nil || c.peer != from || c.kind != ib.CMSIDRReq || c.state != requesting {
		return
	}
	m.remove(c)
	if msg.SIDR.Status != 0 {
		m.handler.Ended(c, Rejected, msg)
		return
	}
	m.handler.Replied(c, msg)
}
