package fc

import "time"

// A Time is a point in a machine's time: the duration since an epoch chosen by the driver. Machines
// compare times and add durations, but never read a clock. So the same code runs in virtual time.
type Time = time.Duration

// Never is later than every event.
const Never Time = 1<<63 - 1

// A Timer is a pending event. The zero value is not usable; [Timers.New] returns a usable one.
type Timer struct {
	at  Time
	seq uint64
	pos int // index in the heap, or -1 if the timer is not set
	fn  func(now Time)
	set *Timers
}

// Timers is the set of pending events of one machine. The zero value is an empty set. It is not
// safe for concurrent use.
type Timers struct {
	heap []*Timer
	seq  uint64
}

// New returns a timer that calls fn when it expires. The timer is not set.
func (ts *Timers) New(fn func(now Time)) *Timer { return &Timer{pos: -1, fn: fn, set: ts} }

// After returns a new timer that is set to time at.
func (ts *Timers) After(at Time, fn func(now Time)) *Timer {
	t := ts.New(fn)
	t.Set(at)
	return t
}

// Set makes t expire at time at. If t was set already, its time changes.
func (t *Timer) Set(at Time) {
	ts := t.set
	ts.seq++
	t.at, t.seq = at, ts.seq
	if t.pos < 0 {
		t.pos = len(ts.heap)
		ts.heap = append(ts.heap, t)
	}
	ts.down(ts.up(t.pos))
}

// Stop removes t from the set. It does nothing if t is nil or not set.
func (t *Timer) Stop() {
	if t == nil || t.pos < 0 {
		return
	}
	ts, i := t.set, t.pos
	last := len(ts.heap) - 1
	ts.swap(i, last)
	ts.heap[last] = nil
	ts.heap = ts.heap[:last]
	t.pos = -1
	if i < last {
		ts.down(ts.up(i))
	}
}

// Active reports whether t is set.
func (t *Timer) Active() bool { return t != nil && t.pos >= 0 }

// Deadline returns the time of the next timer, or Never if no timer is set.
func (ts *Timers) Deadline() Time {
	if len(ts.heap) == 0 {
		return Never
	}
	return ts.heap[0].at
}

// Run calls the functions of all timers that have expired at now, in the order of their times. It
// includes timers that these functions set.
func (ts *Timers) Run(now Time) {
	for len(ts.heap) > 0 && ts.heap[0].at <= now {
		t := ts.heap[0]
		t.Stop()
		t.fn(now)
	}
}

func (ts *Timers) less(i, j int) bool {
	a, b := ts.heap[i], ts.heap[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (ts *Timers) swap(i, j int) {
	h := ts.heap
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (ts *Timers) up(i int) int {
	for i > 0 {
		p := (i - 1) / 2
		if !ts.less(i, p) {
			break
		}
		ts.swap(i, p)
		i = p
	}
	return i
}

func (ts *Timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(ts.heap) {
			return
		}
		if c+1 < len(ts.heap) && ts.less(c+1, c) {
			c++
		}
		if !ts.less(c, i) {
			return
		}
		ts.swap(i, c)
		i = c
	}
}

// At returns the time to which t was last set.
func (t *Timer) At() Time { return t.at }
