package vitcp

import (
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
)

// idleNOP is how long a changed count waits for a segment to carry it, before a NOP does. Two
// counts wait: the receive descriptors posted on an idle connection while the peer has enough
// credits, and the acknowledgement of messages received by a polling consumer.
const idleNOP = time.Millisecond

// The updates make the send role send the changed counts, the acknowledgement and the receive
// descriptors, if no other segment carries them. Any goroutine may use the updates.
type updates struct {
	link    *shared
	wanted  atomic.Bool // the send role must send a NOP if a count has changed
	armed   atomic.Bool // the timer is on
	timerMu perturb.Mutex
	timer   *time.Timer // guarded by timerMu; fires after idleNOP; nil until needed
}

// due reports whether a NOP would carry a count the peer may wait for. Without flow control the
// peer does not wait for counts of receive descriptors. [V-12]
func (u *updates) due() bool {
	l := u.link
	return l.acks.pending() || l.flow.on && l.flow.mine.unadvertised()
}

// urgent reports whether a count must be sent although more input is available. [V-12] [V-21]
func (u *updates) urgent() bool { return u.link.acks.urgent() || u.link.flow.mine.urgent() }

// any reports whether a NOP would carry a count unknown to the peer.
func (u *updates) any() bool { return u.due() || u.link.flow.mine.unadvertised() }

// take reports whether the send role must send a NOP. [send role]
func (u *updates) take() bool { return u.wanted.Swap(false) && u.any() }

// now makes the link send a segment with the current counts at once: a NOP, unless another segment
// is due.
func (u *updates) now() {
	u.wanted.Store(true)
	u.link.c.Kick()
}

// soon makes the link send a NOP after idleNOP, unless another segment carries the counts before.
func (u *updates) soon() {
	if u.armed.Load() || !u.armed.CompareAndSwap(false, true) {
		return
	}
	u.timerMu.Lock()
	defer u.timerMu.Unlock()
	switch {
	case u.link.life.Load().stopped():
	case u.timer == nil:
		u.timer = time.AfterFunc(idleNOP, u.idle)
	default:
		u.timer.Reset(idleNOP)
	}
}

// idle is the timer function of soon. It sends nothing if the counts were sent in the meantime.
func (u *updates) idle() {
	u.armed.Store(false)
	if u.any() {
		u.now()
	}
}

func (u *updates) stop() {
	u.timerMu.Lock()
	defer u.timerMu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
}
