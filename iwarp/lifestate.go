package iwarp

import (
	"sync/atomic"

	"viaduct/internal/perturb"
)

// A lifeState says which directions of a stream go on. [RDMAP 6.2]
//
//	             run               peerClose
//	Idle ----------------> Running ----------> PeerClosed
//	 |                        |                    |
//	 | close                  | close              | close
//	 v           run          v      peerClose     v
//	IdleClosing --------> Closing ----------> ClosingLast
//	                          |                    |
//	                          | finish             | finish
//	                          v      peerClose     v
//	                      HalfClosed -----------> Done
//
// end leads from each of these to Ended, and flush from there to Flushed, which
// nothing leads away from. lifeArrows is this figure; the full matrix is in
// testdata/life.golden.
type lifeState uint32

const (
	// Idle: start-up is not complete.
	lifeIdle lifeState = iota

	// Running: both directions are open.
	lifeRunning

	// PeerClosed: the peer has closed its direction; ours is open. [DDP-6.2.1-4]
	lifePeerClosed

	// IdleClosing: our direction is to be closed once start-up is complete.
	// Nothing can be posted to the send queue, here and below.
	lifeIdleClosing

	// Closing: what is posted is still sent and answered; then our direction ends.
	// [DDP-6.2.1-1]
	lifeClosing

	// ClosingLast: as Closing, and the peer has closed its direction.
	lifeClosingLast

	// HalfClosed: our direction has ended.
	lifeHalfClosed

	// Done: both directions have ended in order.
	lifeDone

	// Ended: the stream has ended. No message leaves any more, but a Terminate, and
	// what arrives is dropped. [DDP-7.1-16]
	lifeEnded

	// Flushed: as Ended, and what is posted from now on is flushed at once.
	lifeFlushed

	lifeStates = iota
)

var lifeStateNames = [lifeStates]string{"Idle", "Running", "PeerClosed", "IdleClosing", "Closing", "ClosingLast", "HalfClosed", "Done", "Ended", "Flushed"}

func (s lifeState) String() string { return lifeStateNames[s] }

// posts: requests may be posted to the send queue.
func (s lifeState) posts() bool { return s <= lifePeerClosed }

// closing: our direction ends as soon as nothing is left to do.
func (s lifeState) closing() bool { return s == lifeClosing || s == lifeClosingLast }

// finished: our direction has ended in order, and the other may go on.
func (s lifeState) finished() bool { return s == lifeHalfClosed || s == lifeDone }

// ended: nothing goes on any more.
func (s lifeState) ended() bool { return s >= lifeEnded }

// public is the state as [QueuePair.State] tells it.
func (s lifeState) public() State {
	switch s {
	case lifeIdle, lifeIdleClosing:
		return StateIdle
	case lifeRunning:
		return StateRunning
	case lifePeerClosed:
		return StatePeerClosed
	case lifeEnded, lifeFlushed:
		return StateEnded
	}
	return StateClosing
}

// A lifeEvent opens or ends something of a stream.
type lifeEvent uint8

const (
	lifeRun       lifeEvent = iota // start-up is complete
	lifeClose                      // the consumer closes our direction
	lifePeerClose                  // the peer's direction has ended in order
	lifeFinish                     // nothing is left to be sent or awaited
	lifeEnd                        // the stream ends, for whatever reason
	lifeFlush                      // the queues are about to be flushed

	lifeEvents = iota
)

var lifeEventNames = [lifeEvents]string{"run", "close", "peerClose", "finish", "end", "flush"}

func (e lifeEvent) String() string { return lifeEventNames[e] }

// lifeArrows lists the transitions, but for those of end. An event that a state has
// no arrow for changes nothing: it says nothing new, or came too late.
var lifeArrows = []struct {
	from lifeState
	on   lifeEvent
	to   lifeState
}{
	{lifeIdle, lifeRun, lifeRunning},
	{lifeIdle, lifeClose, lifeIdleClosing},
	{lifeIdleClosing, lifeRun, lifeClosing},
	{lifeRunning, lifeClose, lifeClosing},
	{lifeRunning, lifePeerClose, lifePeerClosed},
	{lifePeerClosed, lifeClose, lifeClosingLast},
	{lifeClosing, lifePeerClose, lifeClosingLast},
	{lifeClosing, lifeFinish, lifeHalfClosed},
	{lifeClosingLast, lifeFinish, lifeDone},
	{lifeHalfClosed, lifePeerClose, lifeDone},
	{lifeEnded, lifeFlush, lifeFlushed},
}

// lifeTable is lifeArrows by state and event.
var lifeTable = func() (t [lifeStates][lifeEvents]lifeState) {
	for s := range t {
		for e := range t[s] {
			t[s][e] = lifeState(s)
		}
		t[s][lifeEnd] = max(lifeState(s), lifeEnded)
	}
	for _, a := range lifeArrows {
		t[a.from][a.on] = a.to
	}
	return t
}()

// A life is the state of a stream. Its methods may be called by any goroutine.
type life struct{ state atomic.Uint32 }

func (l *life) load() lifeState { return lifeState(l.state.Load()) }

// move applies an event. It returns the state it led to, and whether that is another
// than before: of several goroutines that report the same, one is told true.
func (l *life) move(e lifeEvent) (to lifeState, moved bool) {
	for {
		perturb.Point()
		from := l.load()
		to = lifeTable[from][e]
		if to == from {
			return to, false
		}
		if l.state.CompareAndSwap(uint32(from), uint32(to)) {
			return to, true
		}
	}
}
