package iwarp

import (
	"time"

	"viaduct/internal/perturb"
)

// A nudger sends empty FPDUs to still silent peers. Some Linux versions leave bytes arriving too
// early unread, whether the first FPDU or several at once, until more bytes arrive. With a slow
// peer the empty FPDU arrives too early as well, so up to three are sent, with growing pauses.
// [I-10] One timer serves all streams of a device, because most streams only wait for the peer's
// first request, and a timer for each would be a good part of their cost.
type nudger struct {
	mu   perturb.Mutex
	list []nudge // guarded by mu
	tick bool    // guarded by mu; whether the timer runs
}

// A nudge is a stream with the next empty FPDU due at time at.
type nudge struct {
	t    *sender
	at   time.Time
	next time.Duration // pause after the next empty FPDU
	left int
}

func (n *nudger) add(t *sender) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, nudge{t: t, at: time.Now().Add(nudgeDelay), next: 5 * nudgeDelay, left: nudges})
	n.wakeLocked()
}

func (n *nudger) wakeLocked() {
	if len(n.list) == 0 {
		n.list = nil
	} else if !n.tick {
		n.tick = true
		time.AfterFunc(nudgeDelay, n.look)
	}
}

// look runs when the timer fires. It nudges the streams now due, and removes the streams that have
// received an FPDU, have ended, or have had the last nudge.
func (n *nudger) look() {
	n.mu.Lock()
	list := n.list
	n.list = nil
	n.mu.Unlock()
	now := time.Now()
	kept := list[:0]
	for _, s := range list {
		if s.t.active.received.Load() > 0 || s.t.life.Load().ended() {
			continue
		}
		if !now.Before(s.at) {
			s.t.nudge.Store(true)
			s.t.queue.kick()
			s.left--
			s.at, s.next = now.Add(s.next), 5*s.next
		}
		if s.left > 0 {
			kept = append(kept, s)
		}
	}
	clear(list[len(kept):])
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(kept, n.list...)
	n.tick = false
	n.wakeLocked()
}
