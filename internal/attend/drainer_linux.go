package attend

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/shm"
	"viaduct/internal/sock"
)

// A drainer serves the connections to one other process that are in state Shared, as a sharedPoller
// does, but by the list of the pair: one goroutine takes the connections with news from the list,
// and sleeps at one bell.
//
// News are handled so that none are lost:
//   - The drainer takes the mark of a connection, then sees to it. Whatever keeps it from that puts
//     the mark back, or sets news of the Attention so that someone else does; see newsUnlock.
//   - It asks for the next mark before it reads until there is nothing.
//   - A consumer that sleeps at the connection's own bell asks to be told there. It sets news first,
//     so its Wait puts the mark back.
//
// When the pair ends, each connection gets an attendant, which sleeps at the connection's bell.
type drainer struct {
	pair  *sock.Pair
	table [shm.BoardSlots]atomic.Pointer[Attention]
	over  atomic.Bool // the pair has ended

	watching [shm.BoardSlots / 64]atomic.Uint64 // connections left to a consumer that looks
	watched  atomic.Bool                        // the timer is going to look at them
	watcher  *time.Timer

	mu         perturb.Mutex
	generation atomic.Uint32 // moves when another goroutine takes over
	serving    atomic.Uint32 // moves when a connection is taken; odd while it is served
	before     uint32        // serving when the watchdog last looked; guarded by mu
	dog        *time.Timer   // guarded by mu
	dogOut     atomic.Bool   // the watchdog is going to look
}

const (
	// drainLooks is how often a drainer looks at the list without result before it sleeps. More
	// looks gained nothing in net/http with 16 connections: the other process seldom needs less
	// time than a sleep costs, or it needs much more.
	drainLooks = 4

	// vainMarks is after how many marks in a row without a byte the drainer rests vainRest after
	// each: the peer sets marks as it likes.
	vainMarks = 256
	vainRest  = time.Millisecond
)

// drainers has the drainer of each pair.
var drainers struct {
	mu   sync.Mutex
	list map[*sock.Pair]*drainer // guarded by mu
}

// drainerOf returns the drainer of a pair.
func drainerOf(p *sock.Pair) *drainer {
	drainers.mu.Lock()
	defer drainers.mu.Unlock()
	d := drainers.list[p]
	if d == nil {
		d = &drainer{pair: p}
		d.watcher = time.AfterFunc(time.Hour, d.lookQuiet)
		d.watcher.Stop()
		if drainers.list == nil {
			drainers.list = make(map[*sock.Pair]*drainer)
		}
		drainers.list[p] = d
		go d.run(0)
	}
	return d
}

// registerPair is register where the connection has a pair. Only the receive role registers, so a
// connection that has left the state from, because another consumer has called Wait for instance, may
// be registered already: it is left alone.
func (a *Attention) registerPair(from State, e Event) bool {
	p, slot := a.src.Pair()
	if p == nil || a.State() != from {
		return false
	}
	d := drainerOf(p)
	if d.over.Load() {
		return false
	}
	a.shared.drainer.Store(d)
	d.table[slot].Store(a)
	if !a.moveFrom(from, e) {
		a.deregisterPair()
		return false
	}
	perturb.Point()
	a.src.AskPair()
	p.Again(slot)
	if d.over.Load() {
		a.apply(Busy) // the drainer may have left before it could find the connection
	}
	return true
}

func (a *Attention) deregisterPair() {
	if d := a.shared.drainer.Swap(nil); d != nil {
		_, slot := a.src.Pair()
		d.table[slot].CompareAndSwap(a, nil)
	}
}

// again has the drainer look at the connection.
func (a *Attention) again() {
	perturb.Point()
	if p, slot := a.src.Pair(); p != nil {
		p.Again(slot)
	}
}

// keepNews leaves news to a consumer that looks, if the connection is served by pair. The caller has
// the receive role.
func (a *Attention) keepNews() bool {
	d := a.shared.drainer.Load()
	if d == nil || a.State() != Shared {
		return false
	}
	a.news.Store(newsWait)
	_, slot := a.src.Pair()
	d.watch(slot)
	return true
}

// run is the goroutine of the drainer, until the pair ends or another takes over.
func (d *drainer) run(generation uint32) {
	var now time.Time
	vain := 0 // marks in a row for which nothing was there
	serve := func(slot int) bool {
		vain++
		if a := d.table[slot].Load(); a != nil && d.serve(a, slot, now) {
			vain = 0
		}
		return d.generation.Load() == generation
	}
	looks := drainLooks
	if processors.Load() == 1 {
		looks = 0
	}
	for left := looks; ; {
		now = time.Now()
		switch n := d.pair.Take(serve); {
		case d.generation.Load() != generation:
			return
		case n > 0:
			left = looks
			if vain > vainMarks {
				time.Sleep(vainRest)
			}
			runtime.Gosched() // those who were woken
		case left > 0:
			left--
			runtime.Gosched()
		case !d.pair.Sleep():
			d.end()
			return
		default:
			left = looks
		}
	}
}

// end hands the connections over to attendants.
func (d *drainer) end() {
	d.over.Store(true)
	drainers.mu.Lock()
	delete(drainers.list, d.pair)
	drainers.mu.Unlock()
	d.pair.End()
	for i := range d.table {
		if a := d.table[i].Load(); a != nil {
			a.apply(Busy)
		}
	}
}

// serve is serveNews under the eyes of the watchdog.
func (d *drainer) serve(a *Attention, slot int, now time.Time) bool {
	turn := d.serving.Add(1)
	if !d.dogOut.Load() {
		d.watchdog()
	}
	useful := a.serveNews(d, slot, now)
	d.serving.CompareAndSwap(turn, turn+1) // unless another goroutine has taken over
	return useful
}

// serveNews receives what has arrived. It reports whether anything had.
func (a *Attention) serveNews(d *drainer, slot int, now time.Time) bool {
	perturb.Point()
	a.news.Store(newsUnlock)
	perturb.Point()
	// The load orders the store before what TryLock reads: if that finds the role taken, the one
	// who gives it back finds newsUnlock.
	if a.news.Load() == newsWait || !a.role.TryLock() {
		return false
	}
	if a.State() != Shared {
		a.news.Store(newsNone)
		a.Unlock() // whatever moved the state looks at the source
		return false
	}
	a.news.Store(newsWait) // first: a Wait that comes before looked finds out, or is found
	perturb.Point()
	if a.looked() {
		a.Unlock()
		d.watch(slot)
		return false
	}
	a.news.Store(newsNone)
	a.src.AskPair()
	perturb.Point()
	got, more, err := a.recv.Receive(true, false)
	a.count(got, now)
	if err != nil {
		a.endShared(err)
		return true
	}
	left := a.recv.Left()
	if left {
		a.news.Store(newsWait)
	} else {
		a.recv.Rest()
	}
	busy := more && !recent.crowded() || a.shared.busy()
	a.Unlock()
	switch keep := a.recv.Deliver(); {
	case busy:
		a.apply(Busy)
	case left && keep:
		d.watch(slot)
	case more, left:
		d.pair.Again(slot)
	}
	return got.Any
}

// watch has the timer see whether the consumer goes on looking at a connection.
func (d *drainer) watch(slot int) {
	d.watching[slot/64].Or(1 << (slot % 64))
	if !d.watched.Swap(true) {
		d.watcher.Reset(quietTime)
	}
}

// lookQuiet has the connections served whose consumers have not looked since the last time.
func (d *drainer) lookQuiet() {
	d.watched.Store(false)
	for i := range d.watching {
		for w := d.watching[i].Swap(0); w != 0; w &= w - 1 {
			slot := i*64 + bits.TrailingZeros64(w)
			if a := d.table[slot].Load(); a != nil && a.news.Load() != newsNone && !a.quiet() {
				d.watch(slot)
			}
		}
	}
}

// quiet puts the mark back if no consumer has looked since the last call, else it is false.
func (a *Attention) quiet() bool {
	looks := a.looks.Load()
	if a.shared.quiet.Swap(looks) != looks {
		return false
	}
	a.seen.Store(looks)
	if a.news.Swap(newsNone) != newsNone {
		a.again()
	}
	return true
}

// watchdog starts the timer that looks whether one connection takes long.
func (d *drainer) watchdog() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dogOut.Store(true)
	d.before = d.serving.Load()
	if d.dog == nil {
		d.dog = time.AfterFunc(overdue, d.lookOverdue)
	} else {
		d.dog.Reset(overdue)
	}
}

// lookOverdue has another goroutine take over if the same connection is still being served: no
// method of a protocol blocks, but a callback of its consumer may.
func (d *drainer) lookOverdue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dogOut.Store(false)
	if n := d.serving.Load(); n == d.before && n%2 == 1 && !d.over.Load() {
		d.serving.Add(1)
		go d.run(d.generation.Add(1))
	}
}
