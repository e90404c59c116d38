package frameio

import (
	"sync"
	"time"
)

// A passive goroutine costs a stack, and the instance it sleeps at a descriptor.
// Where not much has come for a while both are given back, and the connection
// waits in a lobby.
const (
	// quiet is how often is looked how much has come.
	quiet = 100 * time.Millisecond

	// little is how many arrivals in that time are no reason to have a goroutine.
	little = 16

	// restAfter is how many looks in a row have to find no more, and nothing at all
	// that a consumer took itself. Coming and going allocates, and who waits for one
	// message after the other should not pay that for each.
	restAfter = 5
)

// A rota holds the connections that have a passive goroutine.
type rota struct {
	mu    sync.Mutex
	conns []*Conn // guarded by mu
	tick  bool    // guarded by mu; a look is going to be made
}

var resting rota

// add puts a connection on the list.
func (w *rota) add(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	w.wakeLocked()
}

func (w *rota) wakeLocked() {
	if len(w.conns) == 0 {
		w.conns = nil
	} else if !w.tick {
		w.tick = true
		time.AfterFunc(quiet, w.look)
	}
}

func (w *rota) look() {
	w.round()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick = false
	w.wakeLocked()
}

// round goes through the list; those connections which are not quiet stay on it.
func (w *rota) round() {
	w.mu.Lock()
	conns := w.conns
	w.conns = nil
	w.mu.Unlock()
	busy := conns[:0]
	for _, c := range conns {
		if !c.rest() {
			busy = append(busy, c)
		}
	}
	clear(conns[len(busy):])
	w.mu.Lock()
	w.conns = append(busy, w.conns...)
	w.mu.Unlock()
}

// rest has the passive goroutine retire if little has come for a while. It is false
// if the connection is to be looked at again. No role is taken for it: who finds it
// taken believes that somebody polls.
func (c *Conn) rest() bool {
	r := &c.rx
	if c.closing.Load() {
		return true
	}
	n := r.woken.Load()
	if n-r.looked.Swap(n) > little {
		r.quiet = 0
		return false
	}
	if r.quiet++; r.quiet < restAfter {
		return false
	}
	r.quiet = 0
	// Cleared first: what comes from here on lists the connection again.
	r.listed.Store(false)
	if c.sock.Load().startle() || r.lobby.Load() != nil {
		return true
	}
	r.listed.Store(true) // it has yet to find its place
	return false
}

// list has the passive goroutine retire when it is quiet, after an arrival.
// [passive goroutine]
func (c *Conn) list() {
	c.rx.woken.Add(1)
	c.enlist()
}

// enlist is list without an arrival. The first look finds it busy.
func (c *Conn) enlist() {
	r := &c.rx
	if !r.listed.Load() {
		r.listed.Store(true)
		r.looked.Store(r.woken.Load() - little - 1)
		resting.add(c)
	}
}
