// Package machine is the state machine of streams and connections: a table moves a state by events,
// which any goroutine may report.
package machine

import (
	"sync/atomic"

	"viaduct/internal/perturb"
)

// An Arrow is a transition.
type Arrow[S ~uint32, E ~uint8] struct {
	From S
	On   E
	To   S
}

// A Table is a transition function. States and events are numbered from 0.
type Table[S ~uint32, E ~uint8] [][]S

// NewTable makes a table of arrows. An event without an arrow from the current state has no effect:
// it is a repetition, or came too late.
func NewTable[S ~uint32, E ~uint8](states, events int, arrows []Arrow[S, E]) Table[S, E] {
	t := make(Table[S, E], states)
	for s := range t {
		t[s] = make([]S, events)
		for e := range t[s] {
			t[s][e] = S(s)
		}
	}
	for _, a := range arrows {
		t[a.From][a.On] = a.To
	}
	return t
}

// A Life holds a state, initially 0. Any goroutine may use it.
type Life[S ~uint32] struct{ state atomic.Uint32 }

// Load returns the state.
func (l *Life[S]) Load() S { return S(l.state.Load()) }

// Set forces a life into a state, without an arrow. It is for tests.
func (l *Life[S]) Set(s S) { l.state.Store(uint32(s)) }

// Move applies an event to a life, and returns the states before and after. If several goroutines
// report the same event, only one sees from and to differ.
func (t Table[S, E]) Move(l *Life[S], e E) (from, to S) {
	for {
		perturb.Point()
		from = l.Load()
		to = t[from][e]
		if to == from || l.state.CompareAndSwap(uint32(from), uint32(to)) {
			return from, to
		}
	}
}
