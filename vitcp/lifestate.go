package vitcp

import "viaduct/internal/machine"

// A lifeState is the state of an established connection.
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
//	      |            |          | | quiesced|
//	      |            |          | v         |
//	      |            |          Finishing   |
//	      | leave,     | leave,   |    |      |
//	      | stop       | stop     |    | fault|
//	      |            |          |    v      v
//	      |            |          |   Closing
//	      +------------|----------|---> ^
//	                   v          |
//	                Aborting <----+ violation
//
// The arrows of fault and violation lead from Leaving and from Finishing.
//
// lifeTable is the figure above; the full matrix is in testdata/life.golden.
type lifeState uint32

const (
	// Made: set-up is over and Start was not called.
	lifeMade lifeState = iota

	// Open: messages are begun and accepted.
	lifeOpen

	// Left is like Open, but the peer's Disconnect has arrived. The end of the stream will be
	// orderly. [V-17]
	lifeLeft

	// Broken: an error was found, or the stream has ended. No further message is begun or accepted.
	// The link still sends the error report and the end of its direction.
	lifeBroken

	// Reset: the peer violated the protocol, and the TCP connection is reset. [V-41]
	lifeReset

	// Leaving: the VI consumer disconnects, and Stop waits for both roles. The receive role may
	// still record a message for acknowledgement. The consumer may have the message already. The
	// last segment must acknowledge the message, because the peer's send would be flushed otherwise.
	// So nothing is sent until Stop has waited. From this state on, the link accesses no memory of
	// the consumer.
	lifeLeaving

	// Finishing: Stop has waited. The link still sends a Disconnect, if both sides support the
	// message, and the end of its direction. [V-17] [V-18]
	lifeFinishing

	// Discarded: the link was stopped before Start.
	lifeDiscarded

	// Closing: the connection is broken, as in Broken, and the engine has stopped the link.
	lifeClosing

	// Aborting: the TCP connection is reset, as in Reset, and the engine has stopped the link.
	lifeAborting

	lifeStates = iota
)

var lifeStateNames = [lifeStates]string{"Made", "Open", "Left", "Broken", "Reset", "Leaving",
	"Finishing", "Discarded", "Closing", "Aborting"}

func (s lifeState) String() string { return lifeStateNames[s] }

// running reports whether messages are begun and accepted.
func (s lifeState) running() bool { return s <= lifeLeft }

// faulted reports whether the stream has ended, or must end because of an error.
func (s lifeState) faulted() bool { return s == lifeBroken || s == lifeReset || s >= lifeClosing }

// stopped reports whether the engine has stopped the link. The link must not access memory of the
// consumer then.
func (s lifeState) stopped() bool { return s >= lifeLeaving }

// A lifeEvent changes the state of a connection.
type lifeEvent uint8

const (
	lifeStart        lifeEvent = iota // the VI is connected
	lifeDisconnected                  // the peer's Disconnect has arrived
	lifeFault                         // an error was found, or the stream has ended
	lifeViolation                     // the input violates the protocol
	lifeLeave                         // the VI consumer disconnects
	lifeStop                          // the engine has broken the connection
	lifeQuiesced                      // Stop has waited for both roles

	lifeEvents = iota
)

var lifeEventNames = [lifeEvents]string{"start", "disconnected", "fault", "violation", "leave", "stop", "quiesced"}

func (e lifeEvent) String() string { return lifeEventNames[e] }

// lifeTable holds the transitions. An event without an arrow does not change the state.
var lifeTable = machine.NewTable(lifeStates, lifeEvents, []machine.Arrow[lifeState, lifeEvent]{
	{From: lifeMade, On: lifeStart, To: lifeOpen},
	{From: lifeMade, On: lifeLeave, To: lifeDiscarded},
	{From: lifeMade, On: lifeStop, To: lifeDiscarded},

	{From: lifeOpen, On: lifeDisconnected, To: lifeLeft},
	{From: lifeOpen, On: lifeFault, To: lifeBroken},
	{From: lifeOpen, On: lifeViolation, To: lifeReset},
	{From: lifeOpen, On: lifeLeave, To: lifeLeaving},
	{From: lifeOpen, On: lifeStop, To: lifeClosing},

	{From: lifeLeft, On: lifeFault, To: lifeBroken},
	{From: lifeLeft, On: lifeViolation, To: lifeReset},
	{From: lifeLeft, On: lifeLeave, To: lifeLeaving},
	{From: lifeLeft, On: lifeStop, To: lifeClosing},

	{From: lifeLeaving, On: lifeFault, To: lifeClosing},
	{From: lifeLeaving, On: lifeViolation, To: lifeAborting},
	{From: lifeLeaving, On: lifeQuiesced, To: lifeFinishing},

	{From: lifeFinishing, On: lifeFault, To: lifeClosing},
	{From: lifeFinishing, On: lifeViolation, To: lifeAborting},

	{From: lifeBroken, On: lifeLeave, To: lifeClosing},
	{From: lifeBroken, On: lifeStop, To: lifeClosing},

	{From: lifeReset, On: lifeLeave, To: lifeAborting},
	{From: lifeReset, On: lifeStop, To: lifeAborting},
})
