package frameio

import (
	"runtime/metrics"
	"sync"
	"time"
)

// Handling what arrives takes a deeper stack than waiting for it, and a
// goroutine's stack does not become as small again as it began. So the passive
// goroutine of a connection that has been quiet for a while is replaced by a
// new one: an idle connection costs the smallest stack there is.
const (
	// quiet is how long nothing may have come for that, once to twice. It is
	// also how often the connections that were not quiet are looked at.
	quiet = 100 * time.Millisecond

	// slowest is how long it takes at most until the next look while new
	// goroutines are given more than the smallest stack anyway.
	slowest = time.Second

	smallestStack = 2 << 10
)

// A rota holds the connections whose passive goroutine may have a larger stack
// than it needs.
type rota struct {
	mu    sync.Mutex
	conns []*Conn       // guarded by mu
	tick  bool          // guarded by mu; a look is going to be made
	after time.Duration // guarded by mu; until the next
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
		w.after = max(w.after, quiet)
		time.AfterFunc(w.after, w.look)
	}
}

func (w *rota) look() {
	w.round(startingStack() <= smallestStack)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick = false
	w.wakeLocked()
}

// round goes through the list, if new goroutines get a small stack; those
// connections which are not quiet stay on it.
func (w *rota) round(small bool) {
	if !small {
		w.mu.Lock()
		w.after = min(2*w.after, slowest)
		w.mu.Unlock()
		return
	}
	w.mu.Lock()
	conns := w.conns
	w.conns = nil
	w.mu.Unlock()
	busy := conns[:0]
	for _, c := range conns {
		if !c.renew() {
			busy = append(busy, c)
		}
	}
	clear(conns[len(busy):])
	w.mu.Lock()
	w.conns = append(busy, w.conns...)
	w.after = quiet
	w.mu.Unlock()
}

// startingStack is what new goroutines are given, in bytes. The runtime makes
// it the average of what goroutines have needed.
func startingStack() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/stack/starting-size:bytes"}}
	metrics.Read(s[:])
	if s[0].Value.Kind() != metrics.KindUint64 {
		return smallestStack
	}
	return s[0].Value.Uint64()
}

// renew makes the passive goroutine give way to a new one if nothing has come
// since the last look. It is false if the connection is to be looked at again.
// No role is taken for it: who finds it taken believes that somebody polls.
func (c *Conn) renew() bool {
	r := &c.rx
	if c.closing.Load() {
		return true
	}
	if n := r.woken.Load(); n != r.looked {
		r.looked = n
		return false
	}
	// Cleared first: what comes from here on lists the connection again.
	r.listed.Store(false)
	c.sock.Load().startle()
	return true
}

// list has the passive goroutine renewed when it is quiet. [passive goroutine]
func (c *Conn) list() {
	r := &c.rx
	r.woken.Add(1)
	if !r.listed.Load() {
		r.listed.Store(true)
		resting.add(c)
	}
}
