package attend

import (
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
)

// An attendant costs a stack, and what it sleeps at a descriptor. Both are given
// back where little has arrived for a while.
const (
	// sweepEvery is how often the sweep looks how much has arrived.
	sweepEvery = 100 * time.Millisecond

	// few is the number of arrivals between two sweeps that do not need an
	// attendant.
	few = 16

	// idleSweeps is the number of consecutive sweeps that find few arrivals, and
	// none that a consumer took, before the attendant retires. Starting and ending
	// attendants allocates, which a consumer that waits for one message after the
	// other should not pay for each.
	idleSweeps = 5
)

// An idleness counts the arrivals of a connection for the sweep.
type idleness struct {
	arrivals atomic.Uint32 // by one for each that the attendant or a poller took, by more than few if a consumer did
	swept    atomic.Uint32 // arrivals at the last sweep
	sweeps   uint8         // consecutive sweeps that found few; the sweep's
	listed   atomic.Bool   // the connection is on the sweep's list
}

// list puts the connection on the sweep's list after an arrival, or as an
// attendant begins: then the first sweep finds the connection busy. [attendant]
func (i *idleness) list(a *Attention, begins bool) {
	if !begins {
		i.arrivals.Add(1)
	}
	if !i.listed.Load() {
		i.listed.Store(true)
		i.swept.Store(i.arrivals.Load() - few - 1)
		attendants.add(a)
	}
}

// busy counts an arrival that a consumer took.
func (i *idleness) busy() {
	if n := i.arrivals.Load(); n-i.swept.Load() <= few {
		i.arrivals.Add(few + 1)
	}
}

// A sweeper holds the connections that have an attendant.
type sweeper struct {
	mu    perturb.Mutex
	list  []*Attention // guarded by mu
	timed bool         // guarded by mu; a timer is going to sweep
}

var attendants sweeper

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

// round goes through the list. Connections that are not idle stay on it.
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

// rest has the attendant retire if the connection is idle. It is false if the
// connection is to be swept again. It does not take the receive role: whatever
// finds the role taken believes that a consumer polls.
func (a *Attention) rest() bool {
	i := &a.idle
	if a.State() == Closed {
		return true
	}
	n := i.arrivals.Load()
	if n-i.swept.Swap(n) > few {
		i.sweeps = 0
		return false
	}
	if i.sweeps++; i.sweeps < idleSweeps {
		return false
	}
	i.sweeps = 0
	i.listed.Store(false) // before the interruption: what arrives from here on lists the connection again
	perturb.Point()
	if a.src.Interrupt() || a.State() == Shared {
		return true
	}
	i.listed.Store(true) // the attendant has yet to reach the source
	return false
}
