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
	buf  [batchLen][maxPacket]byte
	len  [batchLen]int // greater than maxPacket if the packet was truncated
	from [batchLen]netip.AddrPort
	sys  batchSys

	packet ib.Packet // the decoded packet that is being handled
}

// receive receives packets until the socket is closed.
func (p *Port) receive() {
	for {
		err := p.sock.wait(func() bool {
			p.rx.Lock()
			defer p.rx.Unlock()
			_, left := p.pollLocked(true)
			return left
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
	any, _ := p.pollLocked(false)
	for _, q := range p.touched {
		p.backlog.add(q)
	}
	p.touched = p.touched[:0]
	return any
}

// pollMost is the greatest number of batches in one call of pollLocked.
const pollMost = 4

// pollLocked handles up to pollMost batches of packets. After each batch, every queue pair that got
// a packet sends for a turn. any reports whether a packet had arrived, left whether there may be
// more to do; a batch that is not full has emptied the socket.
//
// If yield is set, consumers that were woken run before the queue pairs send. Their replies and the
// acknowledgements then leave in one system call instead of two.
func (p *Port) pollLocked(yield bool) (any, left bool) {
	for range pollMost {
		n := p.sock.receive(p.batch)
		for i := range n {
			p.handleLocked(i)
		}
		any = any || n > 0
		if yield && len(p.touched) > 0 {
			runtime.Gosched()
		}
		p.touched = slices.DeleteFunc(p.touched, func(q *Pair) bool { return !q.takeTurn() })
		if n < batchLen && len(p.touched) == 0 {
			return any, false
		}
	}
	return any, true
}

// handleLocked passes packet i of the batch to its queue pair. It makes the cheapest checks first.
// [ROCE-NET-8]
func (p *Port) handleLocked(i int) {
	b := p.batch
	if b.len[i] > maxPacket || b.len[i] < ib.BTHLen+ib.ICRCLen {
		p.malformed.Add(1)
		return
	}
	raw := b.buf[i][:b.len[i]]
	p.observe(false, b.from[i], netip.AddrPortFrom(p.addr, ib.Port), raw)
	var err error
	if b.packet, err = ib.Parse(raw[:len(raw)-ib.ICRCLen]); err != nil {
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
