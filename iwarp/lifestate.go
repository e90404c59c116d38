package iwarp

import "viaduct/internal/machine"

// A lifeState records which directions of a stream are open. [RDMAP 6.2]
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
// The event end leads from each state in the figure to Ended, and flush leads from Ended to
// Flushed, the final state. lifeTable is this figure; the full matrix is in testdata/life.golden.
type lifeState uint32

const (
	// Idle: start-up is not complete.
	lifeIdle lifeState = iota

	// Running: both directions are open.
	lifeRunning

	// PeerClosed: the peer's direction is closed; our direction is open. [DDP-6.2.1-4]
	lifePeerClosed

	// IdleClosing: our direction will be closed once start-up is complete. From IdleClosing on,
	// nothing can be posted to the send queue.
	lifeIdleClosing

	// Closing: posted requests are still sent, and requests of the peer answered; then our
	// direction ends. [DDP-6.2.1-1]
	lifeClosing

	// ClosingLast: like Closing, but the peer's direction is also closed.
	lifeClosingLast

	// HalfClosed: our direction has ended.
	lifeHalfClosed

	// Done: both directions have ended in order.
	lifeDone

	// Ended: the stream has ended. No message but a Terminate is sent any more, and arriving bytes
	// are dropped. [DDP-7.1-16]
	lifeEnded

	// Flushed: like Ended, and requests posted from now on are flushed at once.
	lifeFlushed

	lifeStates = iota
)

var lifeStateNames = [lifeStates]string{"Idle", "Running", "PeerClosed", "IdleClosing", "Closing",
	"ClosingLast", "HalfClosed", "Done", "Ended", "Flushed"}

func (s lifeState) String() string { return lifeStateNames[s] }

// posts reports whether requests may be posted to the send queue.
func (s lifeState) posts() bool { return s <= lifePeerClosed }

// closing reports whether our direction ends as soon as all requests are done.
func (s lifeState) closing() bool { return s == lifeClosing || s == lifeClosingLast }

// finished reports whether our direction has ended in order; the peer's direction may still be
// open.
func (s lifeState) finished() bool { return s == lifeHalfClosed || s == lifeDone }

// ended reports whether the stream has ended.
func (s lifeState) ended() bool { return s >= lifeEnded }

// A lifeEvent changes the lifeState of a stream.
type lifeEvent uint8

const (
	lifeRun       lifeEvent = iota // start-up is complete
	lifeClose                      // the consumer closes our direction
	lifePeerClose                  // the peer's direction has ended in order
	lifeFinish                     // every request is sent and answered
	lifeEnd                        // the stream ends, for whatever reason
	lifeFlush                      // the queues are about to be flushed

	lifeEvents = iota
)

var lifeEventNames = [lifeEvents]string{"run", "close", "peerClose", "finish", "end", "flush"}

func (e lifeEvent) String() string { return lifeEventNames[e] }

// lifeTable holds the transitions. An event without an arrow in a state leaves the state unchanged.
var lifeTable = func() machine.Table[lifeState, lifeEvent] {
	t := machine.NewTable(lifeStates, lifeEvents, []machine.Arrow[lifeState, lifeEvent]{
		{From: lifeIdle, On: lifeRun, To: lifeRunning},
		{From: lifeIdle, On: lifeClose, To: lifeIdleClosing},
		{From: lifeIdleClosing, On: lifeRun, To: lifeClosing},
		{From: lifeRunning, On: lifeClose, To: lifeClosing},
		{From: lifeRunning, On: lifePeerClose, To: lifePeerClosed},
		{From: lifePeerClosed, On: lifeClose, To: lifeClosingLast},
		{From: lifeClosing, On: lifePeerClose, To: lifeClosingLast},
		{From: lifeClosing, On: lifeFinish, To: lifeHalfClosed},
		{From: lifeClosingLast, On: lifeFinish, To: lifeDone},
		{From: lifeHalfClosed, On: lifePeerClose, To: lifeDone},
		{From: lifeEnded, On: lifeFlush, To: lifeFlushed},
	})
	for s := range t {
		t[s][lifeEnd] = max(lifeState(s), lifeEnded)
	}
	return t
}()
