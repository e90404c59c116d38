package attend

import (
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
)

// An attendant costs a stack, and a descriptor to sleep at. It retires after idleSweeps sweeps with
// few arrivals.
const (
	// sweepEvery is the time between two sweeps. A sweep checks how many arrivals there were since
	// the last sweep.
	sweepEvery = 100 * time.Millisecond

	// few is the largest number of arrivals between two sweeps for which a connection needs no
	// attendant.
	few = 16

	// idleSweeps is the number of consecutive sweeps with few arrivals after which the attendant
	// retires. An arrival read by a consumer counts as more than few: starting and ending
	// attendants allocates, and a consumer waiting for single messages should not pay for an
	// allocation each time.
	idleSweeps = 5
)

// An idleness counts the arrivals of a connection for the sweep.
type idleness struct {
	// arrivals grows by 1 for each arrival read by the attendant or a poller. For an arrival read by
	// a consumer it grows by few+1, unless it is large enough for the next sweep already.
	arrivals atomic.Uint32
	swept    atomic.Uint32 // value of arrivals at the last sweep
	sweeps   uint8         // consecutive sweeps that found few arrivals; used by the sweep only
	listed   atomic.Bool   // whether the connection is on the sweep's list
	bulk     atomic.Bool   // whether the attendant has read many bytes at once since the last sweep
}

// list counts an arrival, and puts the connection on the sweep's list. If begins is true, an
// attendant begins, and there is no arrival to count. The first sweep then finds the connection
// busy. [attendant]
func (i *idleness) list(a *Attention, begins bool) {
	if !begins {
		i.arrivals.Add(1)
	}
	if !i.listed.Load() {
		i.listed.Store(true)
		i.swept.Store(i.arrivals.Load() - few - 1)
		process.attendants.add(a)
	}
}

// note records an arrival of n bytes. [attendant]
func (i *idleness) note(n int) {
	if n > small && !i.bulk.Load() {
		i.bulk.Store(true)
	}
}

// busy makes the next sweep find the connection busy, because a consumer has read an arrival.
func (i *idleness) busy() {
	if n := i.arrivals.Load(); n-i.swept.Load() <= few {
		i.arrivals.Add(few + 1)
	}
}

// A sweeper holds the connections with an attendant.
type sweeper struct {
	mu    perturb.Mutex
	list  []*Attention // guarded by mu
	timed bool         // guarded by mu; whether a timer will sweep
}

func (w *sweeper) add(a *Attention) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, a)
	w.scheduleLocked()
}

func (w *sweeper) scheduleLocked() {
	if len(w.list) == 0 {
		w.list = nil
	} else if !w.timed {
		w.timed = true
		time.AfterFunc(sweepEvery, w.sweep)
	}
}

func (w *sweeper) sweep() {
	w.round()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timed = false
	w.scheduleLocked()
}

// round checks each connection on the list, and removes idle ones from the list.
func (w *sweeper) round() {
	w.mu.Lock()
	list := w.list
	w.list = nil
	w.mu.Unlock()
	busy := list[:0]
	for _, a := range list {
		if !a.rest() {
			busy = append(busy, a)
		}
	}
	clear(list[len(busy):])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(busy, w.list...)
}

// rest makes the attendant retire if the connection is idle. rest returns false if the connection
// must be swept again, and true for a closed connection. rest does not lock the receive role,
// because a goroutine that found the role locked would take rest for a polling consumer.
func (a *Attention) rest() bool {
	i := &a.idle
	if a.State() == Closed {
		return true
	}
	n := i.arrivals.Load()
	if n-i.swept.Swap(n) > few {
		i.sweeps = 0
		if i.bulk.Swap(false) || !paired(a) || process.recent.waiters()-1 <= int(process.processors.Load()) {
			return false
		}
		// Many connections of a pair have small messages. The goroutine of the pair receives them
		// with fewer wake-ups.
	} else if i.sweeps++; i.sweeps < idleSweeps {
		return false
	}
	i.sweeps = 0
	i.listed.Store(false) // before the interruption, because a later arrival lists the connection again
	perturb.Point()
	if a.src.Interrupt() || a.State() == Shared {
		return true
	}
	i.listed.Store(true) // the attendant has not reached the source so far
	return false
}
