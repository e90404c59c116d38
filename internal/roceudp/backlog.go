package roceudp

import "viaduct/internal/perturb"

// A backlog is a queue of queue pairs whose packets the goroutine of sendBacklog has to send.
// Either the socket had no room for the packets, or there were too many packets for the posting
// goroutine.
type backlog struct {
	mu    perturb.Mutex
	pairs []*Pair       // guarded by mu; each pair once, in the order of add
	wake  chan struct{} // one slot, filled if pairs is not empty
}

// add appends a queue pair, unless the backlog has it already. The caller must not hold the lock of
// the queue pair.
func (b *backlog) add(q *Pair) {
	b.mu.Lock()
	if !q.late {
		q.late = true
		b.pairs = append(b.pairs, q)
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
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

// sendBacklog sends packets of the queue pairs in the backlog until the port is closed. On Linux it
// is the only goroutine that waits for room in the socket.
func (p *Port) sendBacklog() {
	for {
		select {
		case <-p.backlog.wake:
		case <-p.done:
			return
		}
		if p.sock.waitRoom(p.takeTurns) != nil {
			return
		}
	}
}

// takeTurns lets the queue pairs of the backlog send, a turn each, until the backlog is empty. It
// returns false if the socket is full.
func (p *Port) takeTurns() bool {
	for {
		q := p.backlog.next()
		if q == nil {
			return true
		}
		q.mu.Lock()
		left := q.transmitLocked()
		q.mu.Unlock()
		if left == nothing {
			continue
		}
		p.backlog.add(q)
		if left == needsRoom {
			return false
		}
	}
}
