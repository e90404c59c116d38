package conform

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"viaduct/internal/wire/ib"
)

// A roceEnd is our end of a reliable RoCEv2 connection. It sends the packets of a case, and
// acknowledges Sends of the peer.
type roceEnd struct {
	t    *T
	ctl  net.Conn       // connection over which the queue pairs were exchanged
	pc   net.PacketConn // UDP port 4791
	own  netip.Addr
	qpn  uint32
	peer rocePeer
	mtu  int

	psn ib.PSN // sequence number of our next request
	msn uint32 // number of our messages that the peer has executed

	expected ib.PSN // sequence number of the peer's next request
	took     uint32 // number of the peer's messages executed here
	began    bool   // the peer has sent a request
}

// roce exchanges queue pairs with the peer and connects the two. psn is the sequence number of our
// first request.
func (t *T) roce(psn ib.PSN) *roceEnd {
	c := t.connect()
	own, ok := netip.AddrFromSlice(c.LocalAddr().(*net.TCPAddr).IP)
	t.check(ok, t.c.Rows[0], "no address of our own")
	e := &roceEnd{t: t, ctl: c, own: own.Unmap(), qpn: 16 + rand.Uint32N(1<<24-32), mtu: t.g.MTU, psn: psn}
	pc, err := t.g.Datagrams(e.own)
	t.check(err == nil, t.c.Rows[0], "no packets can be sent from here: %v", err)
	t.sockets = append(t.sockets, pc)
	e.pc = pc
	e.peer = t.roceExchange(c, e.own, e.qpn, uint32(psn))
	t.check(e.peer.addr.Is4() == e.own.Is4(), "ROCE-NET-7",
		"the GID of the peer is that of %v, the connection came from %v", e.peer.addr, c.RemoteAddr())
	e.expected = ib.PSN(e.peer.psn)
	if t.c.Role == Active { // the peer's first request shows that the peer is ready to receive
		for end := time.Now().Add(t.g.Patience); !e.began && time.Now().Before(end); {
			e.next(time.Until(end))
		}
	}
	return e
}

// startRoCE is roce with a random sequence number.
func (t *T) startRoCE() *roceEnd { return t.roce(ib.PSN(rand.Uint32N(1 << 23))) }

// request returns the next request. The request asks for an acknowledgement at the end of a
// message.
func (e *roceEnd) request(o ib.Opcode, payload []byte) ib.Packet {
	return ib.Packet{BTH: ib.BTH{Opcode: o, PKey: ib.DefaultPKey, QPN: e.peer.qpn, PSN: e.psn, AckReq: o.Ends()},
		Payload: payload}
}

// write returns the first request of an RDMA Write at offset off of a region.
func (e *roceEnd) write(o ib.Opcode, m roceMemory, off uint64, payload []byte) ib.Packet {
	p := e.request(o, payload)
	p.RETH = ib.RETH{VA: m.addr + off, RKey: m.key, Length: uint32(len(payload))}
	return p
}

// send sends a packet with the sequence number unchanged.
func (e *roceEnd) send(p ib.Packet) { e.raw(p.Append(nil)) }

// sendNext sends packets with the next sequence numbers.
func (e *roceEnd) sendNext(ps ...ib.Packet) {
	for _, p := range ps {
		p.PSN = e.psn
		e.psn = e.psn.Add(1)
		if p.Opcode.Ends() {
			e.msn++
		}
		e.send(p)
	}
}

// raw adds the invariant CRC to the packet b and sends the packet.
func (e *roceEnd) raw(b []byte) {
	flow := ib.Flow{Source: e.from(), Destination: e.to()}
	e.sealed(flow.Seal(b))
}

func (e *roceEnd) from() netip.AddrPort { return netip.AddrPortFrom(e.own, ib.Port) }

func (e *roceEnd) to() netip.AddrPort { return netip.AddrPortFrom(e.peer.addr, ib.Port) }

func (e *roceEnd) sealed(b []byte) {
	if _, err := e.pc.WriteTo(b, net.UDPAddrFromAddrPort(e.to())); err != nil {
		e.t.fail(e.t.c.Rows[0], "a packet of %d bytes can't be sent: %v", len(b), err)
	}
}

// next returns the next response or datagram of the peer; ok is false if none arrives in time.
// Packets for other queue pairs belong to earlier conversations and are skipped.
func (e *roceEnd) next(within time.Duration) (p ib.Packet, ok bool) {
	b := make([]byte, 8192)
	for end := time.Now().Add(within); ; {
		e.pc.SetReadDeadline(end)
		n, from, err := e.pc.ReadFrom(b)
		if err != nil {
			return ib.Packet{}, false
		}
		a := from.(*net.UDPAddr).AddrPort()
		if a.Addr().Unmap() != e.peer.addr {
			continue
		}
		p, ok := e.packet(b[:n], netip.AddrPortFrom(e.peer.addr, a.Port()))
		if !ok {
			continue
		}
		if p.Opcode.Transport() == ib.RC && p.Opcode.Kind().Request() {
			if e.serve(&p); e.t.c.Role == Active && !e.began {
				e.began = true
				return p, true
			}
			continue
		}
		p.Payload = append([]byte(nil), p.Payload...)
		return p, true
	}
}

// packet decodes a packet of the peer and makes the checks for all packets; ok is false if the
// packet is for another queue pair.
func (e *roceEnd) packet(b []byte, from netip.AddrPort) (p ib.Packet, ok bool) {
	t := e.t
	t.check(len(b) >= ib.BTHLen+ib.ICRCLen, "ROCE-BTH-1", "a packet of %d bytes", len(b))
	h, _, _ := ib.ParseBTH(b)
	if h.QPN != e.qpn {
		return p, false
	}
	flow := ib.Flow{Source: from, Destination: netip.AddrPortFrom(e.own, ib.Port)}
	t.check(flow.Check(b) == nil, "ROCE-ICRC-1", "the invariant CRC of %v is wrong", h.Opcode)
	t.check(h.Version == 0, "ROCE-BTH-2", "transport version %d", h.Version)
	t.check(b[4]&0x3f == 0 && b[8]&0x7f == 0, "ROCE-BTH-6", "reserved bits are set: bytes %#02x and %#02x", b[4], b[8])
	t.check(ib.PKeyMatches(h.PKey, ib.DefaultPKey), "ROCE-BTH-4", "partition key %#04x", h.PKey)
	t.check(h.Opcode.Assigned() && (h.Opcode.Transport() == ib.RC || h.Opcode.Transport() == ib.UD),
		"ROCE-OP-1", "%v", h.Opcode)
	p, err := ib.Parse(b[:len(b)-ib.ICRCLen])
	row := "ROCE-OP-2"
	if errors.Is(err, ib.ErrPayload) {
		row = "ROCE-BTH-3"
	}
	t.check(err == nil, row, "%v", err)
	return p, true
}

// serve responds to a request of the peer: it counts a Send as executed, acknowledges a duplicate,
// and answers a gap by a NAK.
func (e *roceEnd) serve(p *ib.Packet) {
	switch n := p.PSN.Sub(e.expected); {
	case n > 0:
		e.acknowledge(e.expected, ib.NAKSequence)
		return
	case n < 0:
		e.acknowledge(e.expected.Add(-1), ib.ACK)
		return
	}
	if p.Opcode.Kind() != ib.Send {
		return // the peer knows no memory of ours
	}
	e.expected = e.expected.Add(1)
	if p.Opcode.Ends() {
		e.took++
	}
	if p.AckReq {
		e.acknowledge(p.PSN, ib.ACK)
	}
}

func (e *roceEnd) acknowledge(psn ib.PSN, s ib.Syndrome) {
	p := e.request(ib.Acknowledge, nil)
	p.PSN, p.AckReq, p.AETH = psn, false, ib.AETH{Syndrome: s, MSN: e.took}
	e.send(p)
}

// response returns the next response. If none arrives, the case is repeated, because the network
// may have lost the response.
func (e *roceEnd) response(row, to string) ib.Packet {
	p, ok := e.next(e.t.g.Patience)
	if !ok {
		e.t.again(row, "no answer to %s", to)
	}
	return p
}

// acked waits for the acknowledgement of our last request. It covers all earlier requests.
func (e *roceEnd) acked(row, what string) { e.ackedTo(row, what, e.psn.Add(-1)) }

func (e *roceEnd) ackedTo(row, what string, psn ib.PSN) {
	for {
		p := e.response(row, what)
		e.t.check(p.Opcode == ib.Acknowledge, row, "%v in answer to %s", p.Opcode, what)
		e.t.check(p.AETH.Syndrome.Type() == ib.TypeACK, row, "%v in answer to %s", p.AETH.Syndrome, what)
		if p.PSN.Less(psn) { // acknowledges an earlier request
			continue
		}
		e.t.check(p.PSN == psn, row, "%s is acknowledged by number %d, its last packet is %d", what, p.PSN, psn)
		e.t.check(p.AETH.MSN == e.msn&0xffffff, "ROCE-RESP-13", "message number %d after %d messages",
			p.AETH.MSN, e.msn)
		return
	}
}

// refused waits for a NAK with the sequence number psn and one of the given syndromes. The timer of
// an RNR NAK may differ.
func (e *roceEnd) refused(row, what string, psn ib.PSN, one ...ib.Syndrome) {
	for {
		p := e.response(row, what)
		e.t.check(p.Opcode == ib.Acknowledge, row, "%v in answer to %s", p.Opcode, what)
		s := p.AETH.Syndrome
		if s.Type() == ib.TypeACK && p.PSN.Less(psn) { // acknowledges earlier requests
			continue
		}
		matches := false
		for _, want := range one {
			matches = matches || s == want || want.Type() == ib.TypeRNR && s.Type() == ib.TypeRNR
		}
		e.t.check(matches, row, "%v in answer to %s, expected %v", s, what, one[0])
		e.t.check(p.PSN == psn, row, "%v has number %d, the packet %d", s, p.PSN, psn)
		return
	}
}

// silent fails the case if the peer answers within Quiet.
func (e *roceEnd) silent(row, what string) {
	if p, ok := e.next(e.t.g.Quiet); ok {
		e.t.fail(row, "%v, number %d, %v, in answer to %s", p.Opcode, p.PSN, p.AETH.Syndrome, what)
	}
}

// alive fails the case unless the peer executes a valid message.
func (e *roceEnd) alive(row, what string) {
	e.sendNext(e.request(ib.SendOnly, pattern(8)))
	e.acked(row, "a good Send after "+what)
}

// memory returns a region of the peer with the given rights. If only is set, the region has no
// other rights. The case ends as not observable if the peer has no fitting region.
func (e *roceEnd) memory(rights string, only bool) roceMemory {
	for _, m := range e.peer.memory {
		all := true
		for i := range rights {
			all = all && containsByte(m.rights, rights[i])
		}
		if all && (!only || len(m.rights) == len(rights)) {
			e.t.check(int(m.len) >= 4*e.mtu, e.t.c.Rows[0],
				"the peer has a region of %d bytes, the case needs %d", m.len, 4*e.mtu)
			return m
		}
	}
	e.t.hidden("the peer announces no memory with the rights %q", rights)
	return roceMemory{}
}

func containsByte(s string, b byte) bool {
	for i := range len(s) {
		if s[i] == b {
			return true
		}
	}
	return false
}

// requestRead returns a Read Request for n bytes at offset off of a region.
func (e *roceEnd) requestRead(m roceMemory, off uint64, n int) ib.Packet {
	p := e.request(ib.ReadRequest, nil)
	p.RETH = ib.RETH{VA: m.addr + off, RKey: m.key, Length: uint32(n)}
	return p
}

// packets returns the number of packets for n bytes. A message of 0 bytes takes a packet, too.
func (e *roceEnd) packets(n int) int { return max(1, (n+e.mtu-1)/e.mtu) }

// read reads n bytes at offset off of a region of the peer by an RDMA Read.
func (e *roceEnd) read(row string, m roceMemory, off uint64, n int) []byte {
	p := e.requestRead(m, off, n)
	e.psn = e.psn.Add(e.packets(n))
	e.msn++
	e.send(p)
	return e.readResponse(row, p.PSN, n, true)
}

// readResponse receives the n bytes of a Read Response. If first is false, the request asks for the
// rest of a Read: the opcodes may then continue the opcodes of the first response, or begin again.
//
func (e *roceEnd) readResponse(row string, psn ib.PSN, n int, first bool) (b []byte) {
	last := e.packets(n) - 1
	for i := range last + 1 {
		p := e.response(row, "a Read")
		for p.Opcode == ib.Acknowledge && p.AETH.Syndrome.Type() == ib.TypeACK && p.PSN.Less(psn) {
			p = e.response(row, "a Read") // the former p acknowledges earlier requests
		}
		o := p.Opcode
		e.t.check(o.Kind() == ib.ReadResponse, row, "%v, %v, in answer to a Read", o, p.AETH.Syndrome)
		e.t.check(p.PSN == psn.Add(i), "ROCE-RESP-15",
			"packet %d of a Read Response has number %d, expected %d", i, p.PSN, psn.Add(i))
		e.t.check(o.Ends() == (i == last), "ROCE-OP-12", "%v as packet %d of %d", o, i+1, last+1)
		e.t.check(!first && i == 0 || o.Begins() == (i == 0), "ROCE-OP-12", "%v as packet %d of %d", o, i+1, last+1)
		want := e.mtu
		if i == last {
			want = n - last*e.mtu
		}
		e.t.check(len(p.Payload) == want, "ROCE-COMP-4",
			"%d bytes in packet %d of a Read Response, expected %d", len(p.Payload), i+1, want)
		if o.Begins() || o.Ends() {
			e.t.check(p.AETH.Syndrome.Type() == ib.TypeACK, row, "%v in a Read Response", p.AETH.Syndrome)
		}
		b = append(b, p.Payload...)
	}
	return b
}

// atomic returns a request for an atomic operation at an offset of a region.
func (e *roceEnd) atomic(o ib.Opcode, m roceMemory, off, swapAdd, compare uint64) ib.Packet {
	p := e.request(o, nil)
	p.Atomic = ib.AtomicETH{VA: m.addr + off, RKey: m.key, SwapAdd: swapAdd, Compare: compare}
	return p
}

// atomicResult waits for the result of an atomic operation, and returns the result.
func (e *roceEnd) atomicResult(row string, psn ib.PSN) uint64 {
	p := e.response(row, "an atomic operation")
	e.t.check(p.Opcode == ib.AtomicAcknowledge, row, "%v, %v, in answer to an atomic operation",
		p.Opcode, p.AETH.Syndrome)
	e.t.check(p.PSN == psn, row, "the result of an atomic operation has number %d, expected %d", p.PSN, psn)
	return uint64(p.AtomicAck)
}
