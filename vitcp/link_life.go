package vitcp

import (
	"sync/atomic"

	"viaduct/internal/perturb"
)

// A lifeState says what of an established connection still goes on.
//
//	          start            disconnected
//	Made ------------> Open ------------------> Left
//	 |                  |  |                    |  |
//	 | leave, stop      |  +--------+-----------+  |
//	 v                  |           |              |
//	Discarded           +-----------|---------+----+
//	                                |         |
//	      +------------+------------+---------+
//	      | fault      | violation  | leave   | stop
//	      v            v            v         |
//	    Broken       Reset       Leaving      |
//	      |            |          |    |      |
//	      | leave,     | leave,   |    | fault|
//	      | stop       | stop     |    v      v
//	      |            |          |   Closing
//	      +------------|----------|---> ^
//	                   v          |
//	                Aborting <----+ violation
//
// lifeArrows is this figure; the full matrix is in testdata/life.golden.
type lifeState uint32

const (
	// Made: set-up is over, and Start has not been called.
	lifeMade lifeState = iota

	// Open: messages are begun and taken.
	lifeOpen

	// Left: as Open, and the peer's Disconnect has arrived: the end of the
	// stream is orderly. [V-17]
	lifeLeft

	// Leaving: the VI consumer disconnects. Nothing of the consumer is touched
	// any more, here and in the states below Reset. Our Disconnect is still sent,
	// if both sides know it, and the end of our direction. [V-17] [V-18]
	lifeLeaving

	// Broken: an error was found, or the stream has ended. No message is begun or
	// taken; the report of the error is still sent, and the end of our direction.
	lifeBroken

	// Reset: the peer was against the protocol, and the TCP connection is reset.
	// [V-41]
	lifeReset

	// Discarded: stopped before Start.
	lifeDiscarded

	// Closing: as Broken, and the engine has stopped the link.
	lifeClosing

	// Aborting: as Reset, and the engine has stopped the link.
	lifeAborting

	lifeStates = iota
)

var lifeStateNames = [lifeStates]string{"Made", "Open", "Left", "Leaving", "Broken", "Reset", "Discarded", "Closing", "Aborting"}

func (s lifeState) String() string { return lifeStateNames[s] }

// running: messages are begun and taken.
func (s lifeState) running() bool { return s <= lifeLeft }

// faulted: the stream is over, or its end was found to be necessary.
func (s lifeState) faulted() bool { return s == lifeBroken || s == lifeReset || s >= lifeClosing }

// stopped: the engine has stopped the link, and nothing of the consumer may be
// touched any more.
func (s lifeState) stopped() bool { return s == lifeLeaving || s >= lifeDiscarded }

// A lifeEvent ends something of a connection.
type lifeEvent uint8

const (
	lifeStart        lifeEvent = iota // the VI is connected
	lifeDisconnected                  // the peer's Disconnect has arrived
	lifeFault                         // an error was found, or the stream has ended
	lifeViolation                     // what arrived is against the protocol
	lifeLeave                         // the VI consumer disconnects
	lifeStop                          // the engine has broken the connection

	lifeEvents = iota
)

var lifeEventNames = [lifeEvents]string{"start", "disconnected", "fault", "violation", "leave", "stop"}

func (e lifeEvent) String() string { return lifeEventNames[e] }

// lifeArrows lists the transitions. An event that a state has no arrow for changes
// nothing: it says nothing new, or came too late.
var lifeArrows = []struct {
	from lifeState
	on   lifeEvent
	to   lifeState
}{
	{lifeMade, lifeStart, lifeOpen},
	{lifeMade, lifeLeave, lifeDiscarded},
	{lifeMade, lifeStop, lifeDiscarded},

	{lifeOpen, lifeDisconnected, lifeLeft},
	{lifeOpen, lifeFault, lifeBroken},
	{lifeOpen, lifeViolation, lifeReset},
	{lifeOpen, lifeLeave, lifeLeaving},
	{lifeOpen, lifeStop, lifeClosing},

	{lifeLeft, lifeFault, lifeBroken},
	{lifeLeft, lifeViolation, lifeReset},
	{lifeLeft, lifeLeave, lifeLeaving},
	{lifeLeft, lifeStop, lifeClosing},

	{lifeLeaving, lifeFault, lifeClosing},
	{lifeLeaving, lifeViolation, lifeAborting},

	{lifeBroken, lifeLeave, lifeClosing},
	{lifeBroken, lifeStop, lifeClosing},

	{lifeReset, lifeLeave, lifeAborting},
	{lifeReset, lifeStop, lifeAborting},
}

// lifeTable is lifeArrows by state and event.
var lifeTable = func() (t [lifeStates][lifeEvents]lifeState) {
	for s := range t {
		for e := range t[s] {
			t[s][e] = lifeState(s)
		}
	}
	for _, a := range lifeArrows {
		t[a.from][a.on] = a.to
	}
	return t
}()

// A life is the state of a connection. Its methods may be called by any goroutine.
type life struct{ state atomic.Uint32 }

func (l *life) load() lifeState { return lifeState(l.state.Load()) }

// move applies an event. It returns the state it found, and whether that changed:
// of several goroutines that report the same, one is told true.
func (l *life) move(e lifeEvent) (from lifeState, moved bool) {
	for {
		perturb.Point()
		from = l.load()
		to := lifeTable[from][e]
		if to == from {
			return from, false
		}
		if l.state.CompareAndSwap(uint32(from), uint32(to)) {
			return from, true
		}
	}
}
