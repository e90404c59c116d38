package roceudp

import (
	"net/netip"
	"runtime"
	"slices"

	"viaduct/internal/wire/ib"
)

const (
	// batchLen is how many packets one call takes from the socket, or gives to it.
	batchLen = 64

	// maxPacket is the length of the longest packet that is taken: 4096 bytes of payload with all
	// headers that an opcode can have.
	maxPacket = 4096 + 128

	// turn is how many packets of a queue pair go before others have a turn.
	turn = 64
)

// A batch is packets as they came.
type batch struct {
	buf  [batchLen][maxPacket]byte
	len  [batchLen]int // more than maxPacket of one that was cut short
	from [batchLen]netip.AddrPort
	sys  batchSys

	packet ib.Packet // that is being handled
}

// receive receives until the socket is closed.
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

// Poll receives what has arrived, without waiting, and reports whether anything had. It returns after
// some batches even if packets arrive without end: the goroutine of the port takes the rest.
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

// pollMost is how many batches one call of pollLocked handles.
const pollMost = 4

// pollLocked handles some batches of packets. After each batch the queue pairs that it concerns send for
// a turn each. any reports whether a packet had arrived, left whether there may be more to do: a batch
// that is not full has emptied the socket.
//
// If the caller can yield, consumers that were woken run before acknowledgements go: the packets of an
// answer take them along, in one call of the system instead of two.
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

// handleLocked gives a packet of the batch to its queue pair. What costs least is checked first.
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
