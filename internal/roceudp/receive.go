package roceudp

import (
	"net/netip"
	"runtime"
	"slices"
	"time"

	"viaduct/internal/budget"
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
		if l == nil && pollReads {
			p.stepAside()
		}
		err := s.wait(func() bool {
			p.rx.Lock()
			defer p.rx.Unlock()
			p.sendDeferredLocked()
			var left bool
			_, left, over = p.pollLocked(l, yielding)
			return left || over
		})
		if err != nil {
			return
		}
	}
}

// quietTime is the time without a Poll after which the goroutine of the port receives again.
const quietTime = time.Millisecond

// stepAside leaves the socket to a consumer that polls. It returns when no consumer has polled for
// quietTime, after Unpoll, and after Close. Waking the goroutine for each packet would cost the
// consumer more than receiving the packet. The caller receives afterwards.
func (p *Port) stepAside() {
	for n := p.polls.Load(); n != p.seen; n = p.polls.Load() {
		p.seen = n
		p.aside.Store(true)
		p.quiet.Reset(quietTime)
		select {
		case <-p.resume:
			p.seen = p.polls.Load()
		case <-p.done:
		case <-p.quiet.C:
		}
	}
	p.aside.Store(false)
}

// Unpoll announces that a consumer stops polling: the goroutine of the port receives from now on.
func (p *Port) Unpoll() {
	select {
	case p.resume <- struct{}{}:
	default:
	}
}

// Poll receives the arrived packets, without waiting, and reports whether there were any. It
// handles at most pollMost batches, even if packets arrive without end; the goroutine of the port
// receives later ones. Poll returns false if another goroutine is receiving, and after Close.
// [ROCE-NET-8]
//
// A consumer that replies to messages finds them by Poll and replies by Post. Poll then defers the
// acknowledgement, which Post sends after the reply, in the same system call. If there is no reply,
// the next Poll or the goroutine of the port sends the acknowledgement.
func (p *Port) Poll() bool {
	p.polls.Add(1)
	if !p.rx.TryLock() {
		return false
	}
	defer p.rx.Unlock()
	p.sendDeferredLocked()
	then := sending
	if p.aside.Load() { // the goroutine of the port will look here
		then = deferring
	}
	any, _, _ := p.pollLocked(nil, then)
	for _, l := range p.reading {
		more, _, _ := p.pollLocked(l, then)
		any = any || more
	}
	for _, q := range p.touched {
		p.backlog.add(q)
	}
	p.touched = p.touched[:0]
	return any
}

// sendDeferredLocked sends the deferred acknowledgements that Post has not sent.
func (p *Port) sendDeferredLocked() {
	for i, q := range p.deferred {
		p.replies.Done(&budget.Reply, !q.acknowledges())
		if q.takeTurn() {
			p.backlog.add(q)
		}
		p.deferred[i] = nil
	}
	p.deferred = p.deferred[:0]
}

// An aftermath is what happens between the handling of a batch and the sending.
type aftermath uint8

const (
	yielding  aftermath = iota // consumers that were woken run, so that their replies are sent too
	sending                    // nothing
	deferring                  // acknowledgements of single messages wait for the replies
)

// pollMost is the greatest number of batches in one call of pollLocked.
const pollMost = 4

// pollLocked handles up to pollMost batches of packets of a lane, or of the network if l is nil.
// After each batch, every queue pair that got a packet sends for a turn. then says what happens
// before; a reply and an acknowledgement leave in one system call instead of two. any reports whether
// a packet had arrived, left whether there may be more to do; a batch that is not full has emptied
// the socket. over reports that the other end of the lane is closed.
func (p *Port) pollLocked(l *lane, then aftermath) (any, left, over bool) {
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
		if then == yielding && len(p.touched) > 0 {
			runtime.Gosched()
		}
		if then == deferring && n < batchLen && len(p.touched) > 0 && p.replies.Worth() {
			p.touched = slices.DeleteFunc(p.touched, func(q *Pair) bool {
				deferred := q.acknowledges()
				if deferred && !slices.Contains(p.deferred, q) {
					p.deferred = append(p.deferred, q)
				}
				return deferred
			})
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
