package sdpcore

import (
	"fmt"
	"time"

	"viaduct/internal/wire/sdpwire"
)

// A Role is the part a peer had in setting up the current LLP connection. [D-54]
type Role uint8

const (
	Connecting Role = iota // sent the Hello
	Accepting              // sent the HelloAck
)

// String returns "connecting" or "accepting".
func (r Role) String() string {
	if r == Accepting {
		return "accepting"
	}
	return "connecting"
}

// A Policy selects the mode a half-connection changes to. [D-42]
type Policy uint8

const (
	Auto         Policy = iota // depends on the traffic
	PinBuffered                // Buffered as soon as possible
	PinCombined                // Combined
	PinPipelined               // Pipelined
)

// String returns "auto", "buffered", "combined" or "pipelined".
func (p Policy) String() string {
	switch p {
	case PinBuffered:
		return "buffered"
	case PinCombined:
		return "combined"
	case PinPipelined:
		return "pipelined"
	}
	return "auto"
}

// Infinite as a threshold disables zero copy. [SDP-11-1]
const Infinite = 1 << 62

// Params are the properties of a connection at the end of its set-up.
type Params struct {
	Role Role

	// RecvBufs is the number of receive Private Buffers announced by the local end, 3 to 65535; the
	// driver posts another as a spare. [D-08] Later messages may announce more buffers, as for
	// PeerBufs. [SDP-10.3-2]
	RecvBufs       int
	MaxRecvBufs    int // most receive Private Buffers to post later; at least RecvBufs
	RecvSize       int // bytes of each receive Private Buffer, at least 37
	PeerBufs       int // number of the peer's Private Buffers, as announced
	PeerSize       int // size of the peer's Private Buffers in bytes, as announced
	MaxAdverts     int // advertisements that the peer may have open, as this end announced
	PeerMaxAdverts int // advertisements that this end may have open, as the peer announced
	ORD            int // RDMA Reads that may be outstanding, as both Hellos agreed

	SendPolicy Policy // policy for the direction in which this end is Data Source
	RecvPolicy Policy // policy for the direction in which this end is Data Sink

	SendThreshold int // writes longer than this many bytes use zero copy; Infinite for never [D-39]
	// Reads longer than RecvThreshold bytes accept zero copy. RecvThreshold is raised to RecvSize.
	// [SDP-9-1] [SDP-10-6]
	RecvThreshold int
	NoRead        bool // never issue an RDMA Read: answer every SrcAvail with SendSm [SDP-9-5]
	NoSinkAvail   bool // never send a SinkAvail
	NoInvalidate  bool // complete transfers only with Send with SE [D-41]
	BigPrefix     bool // put as much payload as fits into a SrcAvail, not one byte [D-82]
	UrgentApart   bool // keep urgent bytes out of the stream [D-29]

	// RecvBudget limits the bytes of payload held for the ULP outside the Private Buffers.
	// [SDP-9.5.6-1] [D-79]
	RecvBudget int
	// SendBudget is the number of bytes the driver can copy on the sending side. An unanswered
	// SrcAvail with more bytes left is not sent by Bcopy. [D-81]
	SendBudget int

	MinRecvSize, MaxRecvSize int  // limits if the peer requests another RecvSize; 0 for defaults [SDP-10.6-7]
	NoResize                 bool // keep RecvSize, whatever the peer requests [SDP-10.6-14]
	NoSuspend                bool // answer SuspComm with an abort [D-55]
	MinSuspendPort           int  // least port a SuspComm may name [D-55]

	Timers Timers

	// The first numbers, so that tests can reach a wrap-around quickly. They are zero on a real
	// connection. [SDP-6.1.5-1]
	FirstSend, FirstRecv         uint32
	FirstSrcCount, FirstSnkCount uint32
}

// Timers are the times after which a machine acts without an event. A zero field selects the
// default.
type Timers struct {
	// LocalRead is the time after which the bytes of a SrcAvail are fetched into local memory if no
	// read waits; default 1 ms. [D-38]
	LocalRead time.Duration
	// Deadlock is the time after which the local end acts if both ends advertise and neither reads;
	// default 10 ms, and three times as long at the Connecting Peer. [D-38]
	Deadlock time.Duration
	// Unanswered is the time after which the bytes of an unanswered SrcAvail are sent by Bcopy, if
	// they fit SendBudget; default 1 s. [D-81]
	Unanswered time.Duration
	Cancel     time.Duration // ends a connection with an unanswered cancel; default 5 s [D-81]
	Suspend    time.Duration // ends a connection with an unanswered suspension; default 5 s [D-53]
	Hysteresis time.Duration // least time between two changes of mode by policy; default 1 s [D-42]
	// ModeAck is the time after which an empty Data asks for the acknowledgement of a ModeChange;
	// default 200 ms. [D-45]
	ModeAck time.Duration
	// Nudge is the time after which payload waiting at two credits asks for more credit; default 5
	// ms. [D-10]
	Nudge time.Duration
	// SuspendLimit is the number of suspensions answered per minute, at most 8; default 4, negative
	// for no limit. [D-55]
	SuspendLimit int
}

func (t *Timers) fill() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.LocalRead, time.Millisecond)
	set(&t.Deadlock, 10*time.Millisecond)
	set(&t.Unanswered, time.Second)
	set(&t.Cancel, 5*time.Second)
	set(&t.Suspend, 5*time.Second)
	set(&t.Hysteresis, time.Second)
	set(&t.ModeAck, 200*time.Millisecond)
	set(&t.Nudge, 5*time.Millisecond)
	if t.SuspendLimit == 0 {
		t.SuspendLimit = 4
	}
}

// check panics if p breaks a limit of the protocol, and fills in defaults.
func (p *Params) check() {
	switch {
	case p.RecvBufs < sdpwire.MinBuffers || p.RecvBufs > 65535, p.PeerBufs < sdpwire.MinBuffers: // [SDP-10-2] [SDP-10.3-1] [SDP-6.1.3-2]
		panic(fmt.Sprintf("sdpcore: %d and %d buffers", p.RecvBufs, p.PeerBufs))
	case p.RecvSize < sdpwire.MinBufferSize, p.PeerSize < sdpwire.MinBufferSize: // [SDP-10-5]
		panic(fmt.Sprintf("sdpcore: buffers of %d and %d bytes", p.RecvSize, p.PeerSize))
	case p.MaxAdverts < 1, p.PeerMaxAdverts < 1, p.ORD < 1:
		panic(fmt.Sprintf("sdpcore: %d and %d advertisements, %d reads", p.MaxAdverts, p.PeerMaxAdverts, p.ORD))
	}
	p.Timers.fill()
	if p.MinRecvSize == 0 {
		p.MinRecvSize = sdpwire.MinBufferSize
	}
	if p.MaxRecvSize == 0 {
		p.MaxRecvSize = max(p.RecvSize, 64<<10)
	}
	p.RecvThreshold = max(p.RecvThreshold, p.RecvSize) // [SDP-9-1] [SDP-9.5.1-2] [SDP-10-6]
}
