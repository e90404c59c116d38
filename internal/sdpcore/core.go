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

// A life is the state of a machine as a whole.
type life uint8

const (
	lifeOpen       life = iota // messages are exchanged in both directions
	lifeSuspending             // RDMA is being finished before SuspComm or SuspCommAck
	lifeSuspSent               // SuspComm was sent; only the peer may send [SDP-13.1.1-5]
	lifeSuspended              // no connection until Resume [SDP-13.1.1-7]
	lifeFinished               // DisConn sent and received
	lifeDead                   // aborted, or the LLP has ended
)

var lifeNames = [...]string{"open", "suspending", "suspend sent", "suspended", "finished", "dead"}

func (l life) String() string { return lifeNames[l] }

// A Machine is one end of an SDP connection. New makes a Machine. A message may change the sending
// half, the receiving half, the credits and the state of the connection at the same time, so all
// methods have the same receiver. Each file has the methods of a chapter of the draft.
type Machine struct {
	p    Params
	now  time.Duration // time of the current event; never goes back
	out  []Action      // actions of the current event
	life life
	err  error // error of reads in lifeDead
	werr error // error of writes in lifeDead
	lost bool  // written bytes were left unsent in lifeDead

	cr  credits
	src source
	snk sink
	rsz resize
	sus suspend

	in    inbound // the message being received
	keys  uint64  // number of advertisements made
	stats Stats
}

// New returns a machine for a connection whose Hello and HelloAck have been exchanged. [SDP-6.2-1]
// Both halves begin in Combined Mode. [SDP-8.1.1-23] [SDP-8.1.1-30] [SDP-12-11] New panics if p
// breaks a limit of the protocol, so check the peer's values first.
func New(p Params) *Machine {
	m := &Machine{}
	m.start(p)
	return m
}

func (m *Machine) start(p Params) {
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
	m.p = p
	m.cr.start(p)
	m.rsz = resize{actual: p.PeerSize}
	m.src.mode, m.src.threshold, m.src.count = sdpwire.Combined, p.SendThreshold, serial(p.FirstSrcCount) // [SDP-9.5.1-7]
	m.snk.mode, m.snk.count = sdpwire.Combined, serial(p.FirstSnkCount)                                   // [SDP-6.3.3.4-2]
}

// Err returns the error of reads on a dead connection: the reason for the end, or io.EOF if the
// peer's stream had ended before. On a living connection, and after a graceful end, Err returns
// nil.
func (m *Machine) Err() error { return m.err }

// SendMode and RecvMode return the current modes of the two half-connections, which are
// independent. [SDP-11-3]
func (m *Machine) SendMode() sdpwire.Mode { return m.src.mode }
func (m *Machine) RecvMode() sdpwire.Mode { return m.snk.mode }

// SendQueue returns the number of written bytes not yet sent, read or acknowledged.
func (m *Machine) SendQueue() int { return m.src.queued }

// Credits returns the number of messages that may be sent now.
func (m *Machine) Credits() int { return m.cr.credit() }

// Held returns the number of payload bytes held for later reads.
func (m *Machine) Held() int { return m.snk.held }

// Readable reports whether a read posted now would end without waiting, except for an RDMA Read:
// bytes are held or advertised, or the stream has ended.
func (m *Machine) Readable() bool {
	return m.snk.held > 0 || m.snk.eof || m.life == lifeDead || m.snk.adverts.len() > 0
}

// Stats returns a copy of the counters.
func (m *Machine) Stats() Stats { return m.stats }

// SetBudgets changes Params.SendBudget and RecvBudget.
func (m *Machine) SetBudgets(send, recv int) { m.p.SendBudget, m.p.RecvBudget = send, recv }

// Detachable returns the offset of the first unsent byte of write id. If ok is true, the bytes from
// there on are not advertised, so the driver may copy them and let the caller return. ok is false
// for an unknown id.
func (m *Machine) Detachable(id uint64) (off int, ok bool) {
	s := &m.src
	for i := range s.writes.len() {
		if w := s.writes.at(i); w.id == id {
			advertised := i >= s.nforced && i < s.covered()
			return w.off, !advertised
		}
	}
	return 0, false
}

// begin and end enclose every event. end sends what the event allows, and returns the actions.
func (m *Machine) begin(now time.Duration, out []Action) {
	m.now, m.out = max(now, m.now), out
}

func (m *Machine) end() []Action {
	m.pump()
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) do(a Action) *Action {
	m.out = append(m.out, a)
	return &m.out[len(m.out)-1]
}

// Stats count the work of a machine since New. Resume does not reset the counters.
type Stats struct {
	SentBytesBcopy     uint64 // payload of Data
	SentBytesPrefix    uint64 // payload of SrcAvail
	SentBytesTransact  uint64 // payload of SinkAvail
	SentBytesRead      uint64 // fetched by the peer's RDMA Reads, counted when acknowledged
	SentBytesWrite     uint64 // sent by RDMA Write
	RecvBytesBcopy     uint64
	RecvBytesPrefix    uint64
	RecvBytesTransact  uint64
	RecvBytesRead      uint64 // fetched by RDMA Read
	RecvBytesWrite     uint64 // written by the peer's RDMA Writes, counted when acknowledged
	SentMessages       uint64
	RecvMessages       uint64
	SentCreditUpdates  uint64 // empty Data messages
	CreditStalls       uint64 // number of times that payload had to wait for credit
	SentSrcAvails      uint64
	RecvSrcAvails      uint64
	SentSinkAvails     uint64
	RecvSinkAvails     uint64
	StaleSinkAvails    uint64 // SinkAvails received and discarded, because payload had crossed them
	Overrides          uint64 // SrcAvails abandoned because the peer sent a SinkAvail
	SentSendSms        uint64
	RecvSendSms        uint64
	SentSrcCancels     uint64
	SentSinkCancels    uint64
	ModeChangesSent    uint64
	ModeChangesRecv    uint64
	UrgentSent         uint64
	UrgentRecv         uint64
	Resizes            uint64
	Suspensions        uint64
	Violations         uint64
	CompactedBytes     uint64 // copied to free a Private Buffer
	LongestCreditStall time.Duration
}
