package rxe

import (
	"bytes"
	"encoding/binary"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

const (
	maxDatagram = 4096 // bytes of payload
	grhLen      = 40   // bytes of the header in front of the payload in a receive
)

// Service levels in the completions of datagrams. UCX before 1.19 reads the kind of network header
// from the service level, as stored by adapters of one vendor: the low bits are 2 for IPv4 and 1
// for IPv6.
const (
	levelIPv4 = 10
	levelIPv6 = 9
)

// datagram sends an entry to all queue pairs at the destination. A queue pair without a receive
// does not get the datagram, and nobody is informed. If the datagram has to leave through a full
// socket, the outcome is noRoom and nothing was sent.
func (q *QP) datagram(a *Attributes, r *request) (outcome, Status) {
	e := r.entry
	if e.size > maxDatagram {
		return done, LocalLength
	}
	to, ok := q.space.path(e.ud.ah, q.memory)
	if !ok {
		return done, LocalQPOperation
	}
	own := q.port.GID(to.SGID)
	var l *udLink
	switch {
	case to.DGID.multicast():
		l = q.groupLink(own, to.DGID)
	case !q.fabric.reaches(to.DGID, e.ud.qpn):
		if l = q.udLink(own); l == nil {
			q.tellUnsent(own, to.DGID)
		}
	}
	if l != nil && l.pair.Full() {
		return noRoom, Success
	}
	qkey := e.ud.qkey
	if int32(qkey) < 0 { // a negative key stands for the sender's own
		qkey = a.QKey
	}
	b := make([]byte, grhLen+e.size)
	if copy(b[grhLen:], e.inline); e.inline == nil && gather(b[grhLen:], r.local) != nil {
		return done, LocalProtection
	}
	if l != nil {
		if status := l.send(e, b[grhLen:], to.DGID, qkey); status != Success || !to.DGID.multicast() {
			return done, status
		}
	}
	ipv4 := putGRH(b[:grhLen], own, to.DGID, int(e.size))
	c := completion{kind: doneRecv, length: uint32(len(b)), src: q.num, flags: hasGRH,
		sl: levelIPv6, solicited: e.flags&flagSolicited != 0}
	if ipv4 {
		c.sl = levelIPv4
	}
	if e.op == OpSendImm {
		c.flags, c.imm = c.flags|hasImmediate, e.imm
	}
	for _, p := range q.fabric.members(to.DGID, e.ud.qpn) {
		p.receiveDatagram(b, qkey, c)
	}
	return done, Success
}

// receiveDatagram stores a datagram in the next receive if the datagram fits, and otherwise drops
// the datagram.
func (q *QP) receiveDatagram(b []byte, qkey uint32, c completion) {
	q.recv.mu.Lock()
	defer q.recv.mu.Unlock()
	a := q.attrs.Load()
	if q.recv.closed || q.typ != UD || a.State < abi.RTR || a.State == abi.Err || a.QKey != qkey || !q.takeReceive() {
		return
	}
	to := &q.recv.pieces
	defer to.release()
	switch e := &q.recv.entry; {
	case e.valid && e.elements.size() < uint64(len(b)):
		return
	case !e.valid, !to.addAll(q.memory, e.elements.list(), abi.AccessLocalWrite), scatter(b, to) != nil:
		q.finishReceive(&completion{kind: doneRecv, status: LocalQPOperation, solicited: true})
		q.fail()
		return
	}
	q.received.Add(uint64(len(b) - grhLen))
	q.finishReceive(&c)
}

var mapped4 = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}

// putGRH writes the header in front of a datagram of n bytes: an IPv6 header, or an IPv4 header in
// the last 20 bytes. It returns true for IPv4.
func putGRH(b []byte, from, to GID, n int) (ipv4 bool) {
	const udp, bth, deth, icrc, hops = 8, 12, 8, 4, 64
	const protoUDP = 17
	n += udp + bth + deth + icrc
	if !bytes.HasPrefix(from[:], mapped4) || !bytes.HasPrefix(to[:], mapped4) && !to.multicast() {
		b[0] = 0x60
		binary.BigEndian.PutUint16(b[4:], uint16(n))
		b[6], b[7] = protoUDP, hops
		copy(b[8:], from[:])
		copy(b[24:], to[:])
		return false
	}
	h := b[20:]
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+n))
	h[6] = 0x40 // do not fragment
	h[8], h[9] = hops, protoUDP
	copy(h[12:], from[12:])
	copy(h[16:], to[12:])
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return true
}

// checksum returns the checksum of an IPv4 header.
func checksum(h []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
