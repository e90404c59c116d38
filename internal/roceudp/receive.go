package roceudp

import (
	"net/netip"
	"runtime"
	"slices"

	"viaduct/internal/wire/ib"
)

const (
	// batchLen is the greatest number of packets per call of recvmmsg or sendmmsg.
	batchLen = 64

	// maxPacket is the greatest length of a packet: 4096 bytes of payload, and the headers of any
	// opcode.
	maxPacket = 4096 + 128

	// turn is the number of packets a queue pair sends before other queue pairs may send.
	turn = 64
)

// A batch holds received packets.
type batch struct {
	buf  [batchLen][maxPacket + trailerLen]byte
	len  [batchLen]int // greater than the buffer if the packet was truncated
	from [batchLen]netip.AddrPort
	sys  batchSys

	packet ib.Packet // the decoded packet that is being handled
}

// receive receives packets until the socket is closed, or the other end of the lane. A nil lane
// stands for the network.
func (p *Port) receive(l *lane) {
	s, over := &p.sock, false
	if l != nil {
		s = &l.sock
	}
	for !over {
		err := s.wait(func() bool {
			p.rx.Lock()
			defer p.rx.Unlock()
			var left bool
			_, left, over = p.pollLocked(l, true)
			return left || over
		})
		if err != nil {
			return
		}
	}
}

// Poll receives the arrived packets, without waiting, and reports whether there were any. It
// handles at most pollMost batches, even if packets arrive without end; the goroutine of the port
// receives later ones. Poll returns false if another goroutine is receiving, and after Close.
// [ROCE-NET-8]
func (p *Port) Poll() bool {
	if !p.rx.TryLock() {
		return false
	}
	defer p.rx.Unlock()
	any, _, _ := p.pollLocked(nil, false)
	for _, l := range p.reading {
		more, _, _ := p.pollLocked(l, false)
		any = any || more
	}
	for _, q := range p.touched {
		p.backlog.add(q)
	}
	p.touched = p.touched[:0]
	return any
}

// pollMost is the greatest number of batches in one call of pollLocked.
const pollMost = 4

// pollLocked handles up to pollMost batches of packets of a lane, or of the network if l is nil.
// After each batch, every queue pair that got a packet sends for a turn. any reports whether a
// packet had arrived, left whether there may be more to do; a batch that is not full has emptied
// the socket. over reports that the other end of the lane is closed.
//
// If yield is set, consumers that were woken run before the queue pairs send. Their replies and the
// acknowledgements then leave in one system call instead of two.
func (p *Port) pollLocked(l *lane, yield bool) (any, left, over bool) {
	s := &p.sock
	if l != nil {
		s = &l.sock
	}
	for range pollMost {
		n, failed := s.receive(p.batch)
		for i := range n {
			if l != nil && p.batch.len[i] == 0 { // the end
				failed, n = true, i
				break
			}
			p.handleLocked(i, l != nil)
		}
		over = l != nil && failed
		any = any || n > 0
		if yield && len(p.touched) > 0 {
			runtime.Gosched()
		}
		p.touched = slices.DeleteFunc(p.touched, func(q *Pair) bool { return !q.takeTurn() })
		if n < batchLen && len(p.touched) == 0 {
			return any, false, over
		}
	}
	return any, true, over
}

// handleLocked gives packet i of the batch to its queue pair, or passes it to the port of the queue
// pair's share. It makes the cheapest checks first. [ROCE-NET-8]
func (p *Port) handleLocked(i int, lane bool) {
	b := p.batch
	n, t := b.len[i], trailer{from: b.from[i]}
	if lane {
		if n -= trailerLen; n < 0 || n > maxPacket {
			p.malformed.Add(1)
			return
		}
		t = parseTrailer(b.buf[i][n:])
		b.from[i] = t.from
	}
	if n > maxPacket || n < ib.BTHLen+ib.ICRCLen {
		p.malformed.Add(1)
		return
	}
	raw := b.buf[i][:n]
	if slot := slotOf(ib.DestQPN(raw)); !lane && slot != p.slot && p.slot != 0 && p.passLocked(slot, i, n, t) {
		p.passed.Add(1)
		return
	}
	var err error
	b.packet, err = ib.Parse(raw[:len(raw)-ib.ICRCLen])
	if err == nil && p.slot != 0 && b.packet.QPN == ib.ManagementQPN && p.passManagementLocked(i, n, t, lane) {
		p.passed.Add(1)
		return
	}
	p.observe(false, b.from[i], netip.AddrPortFrom(p.addr, ib.Port), raw)
	if err != nil {
		p.malformed.Add(1)
		return
	}
	q := p.pair(b.packet.QPN)
	if q == nil { // [ROCE-NET-5]
		p.noPair.Add(1)
		return
	}
	if q.take(&b.packet, raw, b.from[i]) && !slices.Contains(p.touched, q) {
		p.touched = append(p.touched, q)
	}
}
