package roceudp

import "viaduct/internal/perturb"

// A backlog is the queue pairs that have packets to send which nobody else sends: the socket had no
// room for them, or they were too many for the goroutine that posted them.
type backlog struct {
	mu    perturb.Mutex
	pairs []*Pair       // guarded by mu; each once, the one that has waited longest first
	wake  chan struct{} // of one slot: there are pairs
}

// add puts a queue pair at the end. It is called without the lock of the pair.
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

// next takes the first queue pair, nil if there is none.
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

// sendBacklog gives the queue pairs of the backlog turns until the port is closed. It is the only
// goroutine that waits for room in the socket.
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

// takeTurns gives queue pairs of the backlog turns until it is empty. It is false if the socket is full.
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
