package attend

import (
	"runtime"
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/sock"
)

// A drainer receives for the connections of a pair of processes (see [sock.Pair]). It is a second
// kind of shared poller: a single goroutine takes the bits that the peer has set, and serves the
// connection of each. While there are bits, the peer makes no system call to wake it.
//
// A connection in state Shared is registered with a shared poller as well, because its own bell
// reports what the pair does not: the first arrival, memory lent by the peer, and the death of the
// peer's process. The first report of the shared poller enters the connection in the table here.
// From then on each request of the connection is for the pair. A lone waiter, asleep at the
// connection's bell, asks for that bell.
type drainer struct {
	pair  *sock.Pair
	table [sock.PairSlots / tableRow]atomic.Pointer[[tableRow]atomic.Pointer[Attention]]

	mu         perturb.Mutex
	generation uint32 // changes when another goroutine takes over; guarded by mu
	serving    bool   // whether a connection is being served; guarded by mu
	turn       uint32 // changes with every served connection; guarded by mu
	before     uint32 // value of turn when the watchdog last checked; guarded by mu
	vain       int    // consecutive bits without an arrival; guarded by mu
	dog        *time.Timer
	watched    bool // whether the watchdog's timer runs; guarded by mu
}

const (
	tableRow = 64

	// drainLooks is the number of times the goroutine looks for bits before it sleeps. Other
	// goroutines run in between.
	drainLooks = 4

	// After maxVain consecutive bits without an arrival, the goroutine pauses for vainPause
	// after each round: otherwise a peer that sets bits for nothing would keep a processor busy.
	maxVain   = 1000
	vainPause = 10 * time.Millisecond
)

// drainerOf returns the drainer of p. The result is nil if the process has no descriptor for it.
func drainerOf(p *sock.Pair) *drainer {
	d, _ := p.Drainer(func() any {
		if !p.Open() {
			return (*drainer)(nil)
		}
		d := &drainer{pair: p}
		p.Hold()
		go d.run(0)
		return d
	}).(*drainer)
	return d
}

// enter puts a into the table.
func (d *drainer) enter(a *Attention, slot int) {
	row := &d.table[slot/tableRow]
	if row.Load() == nil {
		row.CompareAndSwap(nil, new([tableRow]atomic.Pointer[Attention]))
	}
	if at := &row.Load()[slot%tableRow]; at.Load() != a {
		at.Store(a)
		a.shared.slotOf.Store(at)
	}
}

// run is the main function of the goroutine.
func (d *drainer) run(generation uint32) {
	defer d.pair.Release()
	for looks := 0; ; {
		now := time.Now()
		a, turn, ok := d.next(generation, false)
		served := a != nil
		for came := false; a != nil; a, turn, ok = d.next(generation, came) {
			came = report{a: a, now: now, turn: turn}.serve() > 0
			process.drained.Add(1)
		}
		if ok && d.weary() {
			time.Sleep(vainPause)
		}
		switch {
		case !ok:
			return
		case served:
			looks = 0
			runtime.Gosched() // the woken consumers
		case looks < drainLooks && process.processors.Load() > 1:
			looks++
			runtime.Gosched()
		case !d.pair.Sleep():
			d.end()
			return
		default:
			looks = 0
		}
	}
}

// next returns a connection with an arrival, and the number of its turn. a is nil if there is none.
// ok is false if another goroutine has taken over. came reports whether bytes had arrived for the
// connection returned last.
func (d *drainer) next(generation uint32, came bool) (a *Attention, turn uint32, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if generation != d.generation {
		return nil, 0, false
	}
	d.serving = false
	if came {
		d.vain = 0
	}
	for {
		slot, ok := d.pair.Next()
		if !ok {
			return nil, 0, true
		}
		d.vain++
		if row := d.table[slot/tableRow].Load(); row != nil {
			if a := row[slot%tableRow].Load(); a != nil {
				d.serving = true
				d.turn++
				d.watchLocked()
				return a, d.turn, true
			}
		}
	}
}

// weary reports whether too many bits announced nothing.
func (d *drainer) weary() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.vain > maxVain
}

// end makes all connections ask for their own bells after the pair has ended.
func (d *drainer) end() {
	for i := range d.table {
		row := d.table[i].Load()
		if row == nil {
			continue
		}
		for j := range row {
			if a := row[j].Swap(nil); a != nil {
				report{a: a, now: time.Now()}.serve()
			}
		}
	}
}

// watchLocked starts the watchdog while connections are served.
func (d *drainer) watchLocked() {
	if d.watched {
		return
	}
	d.watched, d.before = true, d.turn
	if d.dog == nil {
		d.dog = time.AfterFunc(overdue, d.look)
	} else {
		d.dog.Reset(overdue)
	}
}

// look is the watchdog: if the same connection is still being served, look starts another
// goroutine.
func (d *drainer) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watched = false
	if !d.serving {
		return
	}
	if d.turn == d.before {
		d.generation++
		d.serving = false
		d.pair.Hold()
		go d.run(d.generation)
		return
	}
	d.watchLocked()
}
