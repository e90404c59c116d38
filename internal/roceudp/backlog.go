package roceudp

import "viaduct/internal/perturb"

// A backlog is a queue of queue pairs whose packets the goroutine of sendBacklog has to send.
// Either the socket had no room for the packets, or there were too many packets for the posting
// goroutine.
type backlog struct {
	mu    *perturb.Mutex // shared by the backlogs of a port
	pairs []*Pair        // guarded by mu; in the order of add
	wake  chan struct{}  // one slot, filled if pairs is not empty
	heir  *backlog       // guarded by mu; takes the queue pairs after moveTo
}

func newBacklog(mu *perturb.Mutex) *backlog { return &backlog{mu: mu, wake: make(chan struct{}, 1)} }

// add appends a queue pair, unless a backlog of the port has it already.
func (b *backlog) add(q *Pair) {
	b.mu.Lock()
	if b.heir != nil {
		b.mu.Unlock()
		b.heir.add(q)
		return
	}
	if !q.late {
		q.late = true
		b.pairs = append(b.pairs, q)
	}
	b.mu.Unlock()
	b.ring()
}

func (b *backlog) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// moveTo moves the queue pairs, and those that are added later, to another backlog.
func (b *backlog) moveTo(heir *backlog) {
	b.mu.Lock()
	b.heir = heir
	heir.pairs = append(heir.pairs, b.pairs...)
	b.pairs = nil
	b.mu.Unlock()
	heir.ring()
}

// next removes and returns the first queue pair, or returns nil if there is none.
func (b *backlog) next() *Pair {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pairs) == 0 {
		return nil
	}
	q := b.pairs[0]
	b.pairs[0] = nil
	b.pairs = b.pairs[1:]
	q.late = false
	return q
}

// sendBacklog sends packets of the queue pairs in a backlog until done is closed. On Linux it is the
// only goroutine that waits for room in the socket, which is the socket of the port or of a lane.
func (p *Port) sendBacklog(b *backlog, s *socket, done chan struct{}) {
	for {
		select {
		case <-b.wake:
		case <-done:
			return
		}
		if s.waitRoom(b.takeTurns) != nil {
			return
		}
	}
}

// takeTurns lets the queue pairs of the backlog send, a turn each, until the backlog is empty. It
// returns false if the socket of the backlog is full.
func (b *backlog) takeTurns() bool {
	for {
		q := b.next()
		if q == nil {
			return true
		}
		q.mu.Lock()
		left, full := q.transmitLocked(), q.full
		q.mu.Unlock()
		switch {
		case left == canGo:
			b.add(q)
		case left == needsRoom && full == b:
			return false
		}
	}
}
