// Package machine has what the lifetimes of streams and connections have in common: a
// state that events move by a table, at any goroutine.
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

// NewTable makes a table of arrows. An event that a state has no arrow for leaves it as
// it is: it says nothing new, or came too late.
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

// A Life is a state, 0 at first. Any goroutine may use it.
type Life[S ~uint32] struct{ state atomic.Uint32 }

// Load is the state.
func (l *Life[S]) Load() S { return S(l.state.Load()) }

// Set puts a life into a state past all arrows. It is for tests.
func (l *Life[S]) Set(s S) { l.state.Store(uint32(s)) }

// Move applies an event to a life, and returns the state that it found and the one that
// it led to. Of several goroutines that report the same, one is told of a change.
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
