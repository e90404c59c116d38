package fc

import "time"

// A class2Frame is a copy of a class 2 frame, stored for retransmission.
type class2Frame struct {
	f      Frame
	buf    []byte
	timer  *Timer
	busy   int  // number of BSY answers
	again  int  // number of retransmissions because no ACK arrived
	pauses bool // the frame was answered BSY and waits to be sent again
}

// These are limits of the retransmission of a class 2 frame. [FCVI 8.4]
const (
	maxBusy   = 8 // after BSY
	maxResend = 7 // retransmissions, each after E_D_TOV without an ACK
)

// RecoveryTime returns how long a sender retransmits a class 2 frame before the frame fails. A
// receiver must wait at least that long for a missing frame.
func (p *NPort) RecoveryTime() time.Duration { return (maxResend + 1) * p.edtov }

// FailTimeout is the reason in Upper.Failed if no ACK arrived.
const FailTimeout = 0

// Room reports whether another class 2 data frame to r would be sent without waiting for credit.
func (r *Remote) Room() bool { return len(r.waiting) == 0 && len(r.out) < r.credit }

// Send transmits a data frame to r in the given class. It sets addresses and delimiters; the caller
// sets all other fields. It returns false and sends nothing if r is not ready. A class 2 frame
// beyond the end-to-end credit waits until there is credit.
func (p *NPort) Send(now Time, r *Remote, class Class, first bool, f *Frame) bool {
	if !r.Ready() {
		return false
	}
	f.SID, f.DID = p.id, r.Addr
	f.SOF, f.EOF = class.Delimiters(first, f.Last())
	if class != Class2 {
		p.stats.SentFrames++
		p.out.Send(f)
		return true
	}
	f.FCtl |= FCtlACK1 // [FCVI-5.8-11]
	var c *class2Frame
	if n := len(r.free); n > 0 {
		c, r.free = r.free[n-1], r.free[:n-1]
	} else {
		c = &class2Frame{}
		c.timer = p.timers.New(func(now Time) { r.overdue(now, c) })
	}
	c.buf, c.busy, c.again, c.pauses = f.CloneTo(&c.f, c.buf), 0, 0, false
	r.waiting = append(r.waiting, c)
	r.pump(now)
	return true
}

func (r *Remote) pump(now Time) {
	for len(r.waiting) > 0 && len(r.out) < r.credit { // [FCFS-2.9-3]
		c := r.waiting[0]
		r.waiting = append(r.waiting[:0], r.waiting[1:]...)
		r.out = append(r.out, c)
		c.timer.Set(now + r.p.edtov)
		r.p.transmit(&c.f)
	}
}

// take removes and returns the unacknowledged frame answered by the ACK, reject or busy f, or nil
// if there is none.
func (r *Remote) take(f *Frame) *class2Frame {
	for i, c := range r.out {
		h := &c.f.Header
		if h.OXID == f.OXID && h.SeqID == f.SeqID && h.SeqCnt == f.SeqCnt &&
			(h.FCtl^f.FCtl)&FCtlExchResponder != 0 {
			r.out = append(r.out[:i], r.out[i+1:]...)
			c.timer.Stop()
			return c
		}
	}
	return nil
}

func (r *Remote) recycle(c *class2Frame) {
	if len(r.free) < 64 {
		r.free = append(r.free, c)
	}
}

func (r *Remote) dropClass2() {
	for _, c := range r.out {
		c.timer.Stop()
	}
	r.out, r.waiting = nil, nil
}

// overdue runs when the timer of a sent frame expires: after the pause that follows a BSY, or
// E_D_TOV after the frame was sent, if no ACK arrived. It retransmits the frame, or reports its
// failure after maxResend retransmissions. A receiver recognizes repeated frames by handle, MSG_ID
// and offset. [FCVI B.2.6]
func (r *Remote) overdue(now Time, c *class2Frame) {
	p := r.p
	switch {
	case c.pauses:
		p.stats.Busy++
	case c.again < maxResend:
		c.again++
		c.f.FCtl |= FCtlRetransmitted
		p.stats.Resent++
	default:
		r.remove(c)
		r.failed(now, &c.f, FailTimeout)
		r.recycle(c)
		return
	}
	c.pauses = false
	c.timer.Set(now + p.edtov)
	p.transmit(&c.f)
}

func (r *Remote) remove(c *class2Frame) {
	for i, o := range r.out {
		if o == c {
			r.out = append(r.out[:i], r.out[i+1:]...)
			return
		}
	}
}

func (r *Remote) failed(now Time, f *Frame, reason uint8) {
	if u := r.p.upper[f.Type]; u != nil {
		u.Failed(now, r, f, reason)
	}
	r.pump(now)
}

// Forget drops the unacknowledged and waiting class 2 frames of an abandoned exchange.
func (p *NPort) Forget(now Time, r *Remote, oxid uint16) {
	keep := func(s []*class2Frame) []*class2Frame {
		n := 0
		for _, c := range s {
			if c.f.OXID == oxid {
				c.timer.Stop()
				r.recycle(c)
				continue
			}
			s[n] = c
			n++
		}
		return s[:n]
	}
	r.out, r.waiting = keep(r.out), keep(r.waiting)
	r.pump(now)
}

// receiveLinkControl handles ACK_1, P_RJT, F_RJT, P_BSY and F_BSY.
func (p *NPort) receiveLinkControl(now Time, f *Frame) {
	r := p.remotes[f.SID]
	if r == nil {
		p.stats.UnknownExchange++
		return
	}
	switch f.RCtl {
	case RCtlACK1:
		c := r.take(f)
		if c == nil {
			p.stats.UnknownExchange++
			return
		}
		r.pump(now)
		if u := p.upper[c.f.Type]; u != nil {
			u.Acked(now, r, &c.f)
		}
		r.recycle(c)
	case RCtlPRJT, RCtlFRJT:
		c := r.take(f)
		if c == nil {
			p.stats.UnknownExchange++
			return
		}
		r.failed(now, &c.f, max(1, uint8(f.Param>>16)))
		r.recycle(c)
	case RCtlPBSY, RCtlFBSYData:
		c := r.take(f)
		if c == nil {
			p.stats.UnknownExchange++
			return
		}
		if c.busy == maxBusy {
			r.failed(now, &c.f, FailTimeout)
			r.recycle(c)
			return
		}
		c.busy++
		c.pauses = true
		r.out = append(r.out, c)
		c.timer.Set(now + p.edtov/8)
	default:
		p.stats.UnknownType++
	}
}

// ack sends ACK_1 for a class 2 data frame. The ACK to the last frame of a
// sequence ends in EOFt.
// [FCFS-2.9-2]
func (p *NPort) ack(f *Frame) { p.linkControl(f, RCtlACK1, 1) }

// reject sends P_RJT for a class 2 data frame.
// [FCFS-2.9-4]
func (p *NPort) reject(f *Frame, reason uint8) {
	p.linkControl(f, RCtlPRJT, 1<<24|uint32(reason)<<16)
}

func (p *NPort) linkControl(f *Frame, rctl RCtl, param uint32) {
	tx := p.reply(f, rctl, TypeBLS)
	tx.SOF, tx.EOF = SOFn2, EOFn
	tx.FCtl |= FCtlSeqRecipient | f.FCtl&(FCtlFirstSeq|FCtlLastSeq|FCtlEndSeq)
	tx.SeqCnt, tx.Param = f.SeqCnt, param
	if f.Last() {
		tx.EOF = EOFt
	}
	p.transmit(tx)
}
