package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// A run says how Take handles the frames that continue the last frame. It is valid until another
// frame arrives or the station's lock is released.
type run struct {
	now  fc.Time
	resp bool // the frame belongs to the response stream
}

var _ fc.Taker = (*conn)(nil)

// follow allows the link to pass the frames continuing f to Take. f and every earlier frame were
// placed, and f is not the last frame.
func (c *conn) follow(now fc.Time, f *fc.Frame, resp bool) {
	if len(f.Payload) > 0 && !f.Last() && f.Class() == fc.Class3 && c.transfers() {
		c.run = run{now, resp}
		f.Taker = c
	}
}

// Take implements fc.Taker. The header equals the previous frame's, whose checks have passed. So
// only the position and the bytes remain to be checked. If Take returns false, the link must
// deliver the frame as a whole.
func (c *conn) Take(b []byte) bool {
	if !c.transfers() || c.early.paused {
		return false
	}
	taken, fail := false, (*failure)(nil)
	if c.run.resp {
		taken, fail = c.tx.takeRead(c.run.now, b)
	} else {
		taken, fail = c.rx.take(c.run.now, b)
	}
	if fail != nil {
		c.fail(c.run.now, fail)
		c.p.pump(c.run.now)
	}
	if taken {
		c.p.stats.RecvFrames++
		c.p.np.Taken()
	}
	return taken
}

// take places b, the payload that continues the next message of the request stream. It returns
// false, without effect, if the frame needs all checks.
func (r *receiver) take(now fc.Time, b []byte) (taken bool, fail *failure) {
	m := r.ahead(r.mexp)
	if m == nil || m.stage == complete || m.discard || m.held || m.end >= 0 || r.failed != iu.Accepted {
		return false, nil
	}
	limit := r.mts
	if m.h.Op == iu.WriteRqst {
		limit = m.h.Total
	}
	off := m.got.next()
	if uint64(off)+uint64(len(b)) > uint64(limit) || !m.got.extend(uint32(len(b))) {
		return false, nil
	}
	_, fail = r.placeFrame(now, m, off, b)
	return true, fail
}
