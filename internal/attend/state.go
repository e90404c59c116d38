package attend

// A State says what waits for arrivals of a connection.
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
// Close leads from every state to Closed, and nothing leads away from there.
// arrows is this figure; the full matrix is in testdata/matrix.golden.
type State uint32

const (
	// Unstarted: nothing may read yet.
	Unstarted State = iota

	// Reserved: the consumer that started the connection reads by polling;
	// nothing else waits for arrivals, and no goroutine exists.
	Reserved

	// Shared: the source is registered with a shared poller, which reads what
	// it reports. Each arrival is reported once.
	Shared

	// Dedicated: a goroutine of this connection sleeps at the source and reads
	// what arrives.
	Dedicated

	// Polled: a consumer has looked within the last millisecond. The goroutine
	// of the connection exists, but not at the source: being woken for each
	// message would cost the consumer more than the rest of the receive path.
	Polled

	// Closed: the source has ended or was closed. Nothing reads any more.
	Closed

	states = iota
)

var stateNames = [states]string{"Unstarted", "Reserved", "Shared", "Dedicated", "Polled", "Closed"}

func (s State) String() string { return stateNames[s] }

// An Event changes what waits for arrivals.
type Event uint8

const (
	// Start: arrivals are to be waited for from now on.
	Start Event = iota

	// Reserve: the consumer reads by polling until its first Wait.
	Reserve

	// Arrival: something is at the source, and nothing else reads it.
	Arrival

	// Contended: something is at the source, and a consumer reads just now or
	// has looked since the last Wait.
	Contended

	// Wait: a consumer stops looking and sleeps.
	Wait

	// Left: bytes were read and left for a consumer that is about to poll. No
	// arrival will tell of them.
	Left

	// Quiet: no consumer has looked for a millisecond.
	Quiet

	// Busy: arrivals follow each other so closely that they deserve a goroutine,
	// or there is no shared poller.
	Busy

	// Idle: there have been few arrivals for half a second.
	Idle

	// Close: the stream has ended, or the connection is being closed.
	Close

	events = iota
)

var eventNames = [events]string{"Start", "Reserve", "Arrival", "Contended", "Wait", "Left", "Quiet", "Busy", "Idle", "Close"}

func (e Event) String() string { return eventNames[e] }

// An Action is what the goroutine that moved the state has to do.
type Action uint8

const (
	Nothing   Action = iota
	Register         // register the source with a shared poller
	Receive          // read the source
	Dedicate         // take the source out of its shared poller, if it is in one, and start a goroutine
	StepAside        // have the goroutine leave the source to the consumer that looks
	Resume           // have the goroutine return to the source
	Retire           // end the goroutine, the caller, and register the source with a shared poller
	Leave            // take the source out of its shared poller, wake the goroutine

	actions = iota
)

var actionNames = [actions]string{"", "register", "receive", "dedicate", "step aside", "resume", "retire", "leave"}

func (a Action) String() string { return actionNames[a] }

// An arrow is one transition.
type arrow struct {
	from State
	on   Event
	to   State
	do   Action
}

// arrows lists the transitions. An event that a state has no arrow for changes
// nothing: it came too late, or says nothing new.
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

// step is what an event leads to.
type step struct {
	to State
	do Action
}

// table is arrows by state and event.
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

// next is the transition function.
func next(s State, e Event) (State, Action) {
	n := table[s][e]
	return n.to, n.do
}
