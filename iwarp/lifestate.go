package iwarp

import "viaduct/internal/machine"

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
// nothing leads away from. lifeTable is this figure; the full matrix is in
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

// lifeTable has the transitions.
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
