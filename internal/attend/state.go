package attend

import (
	"sync/atomic"

	"viaduct/internal/perturb"
)

// A State records who waits for arrivals of a connection.
//
//	             Start                    Busy
//	Unstarted ----------->  Shared  ------------------>  Dedicated
//	    |                   ^    |  <------------------    |  ^
//	    | Reserve           |    |         Idle            |  |
//	    v          Wait     |    |         Contended, Left |  | Wait, Quiet
//	Reserved ---------------+    |                         v  |
//	    |                        +-------------------->   Polled
//	    |                          Contended, Left           ^
//	    +----------------------------------------------------+
//	                               Left
//
// Close leads from every state to Closed, which is final. arrows lists the transitions of the
// figure; the full matrix is in testdata/matrix.golden.
type State uint32

const (
	// Unstarted: nobody may read so far.
	Unstarted State = iota

	// Reserved: the consumer that started the connection reads by polling; nobody else waits for
	// arrivals, and there is no goroutine.
	Reserved

	// Shared: the source is registered with a shared poller, which reads the source after a report.
	// Each arrival is reported once.
	Shared

	// Dedicated: a goroutine of the connection sleeps at the source and reads arrivals.
	Dedicated

	// Polled: a consumer has polled within the last millisecond. The goroutine of the connection
	// exists, but stays away from the source: being woken for each message would cost the consumer
	// more than the rest of the receive path.
	Polled

	// Closed: the source has ended or was closed. Nobody reads any more.
	Closed

	states = iota
)

var stateNames = [states]string{"Unstarted", "Reserved", "Shared", "Dedicated", "Polled", "Closed"}

func (s State) String() string { return stateNames[s] }

// An Event changes who waits for arrivals.
type Event uint8

const (
	// Start: begin to wait for arrivals.
	Start Event = iota

	// Reserve: the consumer reads by polling until its first Wait.
	Reserve

	// Arrival: bytes have arrived, and nobody is reading.
	Arrival

	// Contended: bytes have arrived, and a consumer is reading or has polled since the last Wait.
	Contended

	// Wait: a consumer stops polling and sleeps.
	Wait

	// Left: bytes were read and left for a consumer about to poll. No arrival will be reported for
	// the bytes.
	Left

	// Quiet: no consumer has polled for a millisecond.
	Quiet

	// Busy: arrivals are close together and need a goroutine, or there is no shared poller.
	Busy

	// Idle: there have been few arrivals for half a second.
	Idle

	// Close: the stream has ended, or the connection is being closed.
	Close

	events = iota
)

var eventNames = [events]string{"Start", "Reserve", "Arrival", "Contended", "Wait", "Left",
	"Quiet", "Busy", "Idle", "Close"}

func (e Event) String() string { return eventNames[e] }

// An Action is the task of the goroutine that changed the state.
type Action uint8

const (
	Nothing   Action = iota
	Register         // register the source with a shared poller
	Receive          // read the source
	Dedicate         // remove the source from its shared poller, if it is in one, and start a goroutine
	StepAside        // make the goroutine leave the source to the polling consumer
	Resume           // make the goroutine return to the source
	Retire           // register the source with a shared poller, and end this goroutine
	Leave            // remove the source from its shared poller, and wake the goroutine

	actions = iota
)

var actionNames = [actions]string{"", "register", "receive", "dedicate", "step aside", "resume", "retire", "leave"}

func (a Action) String() string { return actionNames[a] }

// An arrow is a transition.
type arrow struct {
	from State
	on   Event
	to   State
	do   Action
}

// arrows lists the transitions. An event without an arrow from the current state changes nothing:
// the event is late, or already known.
var arrows = []arrow{
	{Unstarted, Start, Shared, Register},
	{Unstarted, Busy, Dedicated, Dedicate},
	{Unstarted, Reserve, Reserved, Nothing},
	{Unstarted, Close, Closed, Leave},

	{Reserved, Wait, Shared, Register},
	{Reserved, Busy, Dedicated, Dedicate},
	{Reserved, Left, Polled, Dedicate},
	{Reserved, Close, Closed, Leave},

	{Shared, Arrival, Shared, Receive},
	{Shared, Contended, Polled, Dedicate},
	{Shared, Left, Polled, Dedicate},
	{Shared, Busy, Dedicated, Dedicate},
	{Shared, Close, Closed, Leave},

	{Dedicated, Arrival, Dedicated, Receive},
	{Dedicated, Contended, Polled, StepAside},
	{Dedicated, Left, Polled, StepAside},
	{Dedicated, Idle, Shared, Retire},
	{Dedicated, Close, Closed, Leave},

	{Polled, Wait, Dedicated, Resume},
	{Polled, Quiet, Dedicated, Resume},
	{Polled, Close, Closed, Leave},
}

// current is the State of an Attention. Only its methods change the State.
type current struct{ state atomic.Uint32 }

// State returns the current state.
func (c *current) State() State { return State(c.state.Load()) }

// move applies event e to the state. It returns the state before, and the action the caller must
// perform.
func (c *current) move(e Event) (from State, do Action) {
	for {
		perturb.Point()
		from = c.State()
		to, do := next(from, e)
		if to == from {
			return from, do
		}
		if c.state.CompareAndSwap(uint32(from), uint32(to)) {
			return from, do
		}
	}
}

// moveFrom applies event e and returns true if the state is from, and false otherwise.
func (c *current) moveFrom(from State, e Event) bool {
	to, _ := next(from, e)
	perturb.Point()
	return c.state.CompareAndSwap(uint32(from), uint32(to))
}

// A step is the result of an event.
type step struct {
	to State
	do Action
}

// table holds arrows by state and event.
var table = func() (t [states][events]step) {
	for s := range t {
		for e := range t[s] {
			t[s][e] = step{to: State(s)}
		}
	}
	for _, a := range arrows {
		t[a.from][a.on] = step{a.to, a.do}
	}
	return t
}()

// next is the transition function. It returns the next state and the action.
func next(s State, e Event) (State, Action) {
	n := table[s][e]
	return n.to, n.do
}
