package sdp

import (
	"time"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// A Policy says which flow control mode a half of the connection is steered to.
type Policy uint8

// The policies.
const ( // [D-42]
	Auto         Policy = iota // by what the traffic looks like
	PinBuffered                // copies only
	PinCombined                // copies, and one RDMA Read at a time
	PinPipelined               // everything, many at a time
)

// String returns "auto", "buffered", "combined" or "pipelined".
func (p Policy) String() string { return sdpcore.Policy(p).String() }

// [D-01]

// A Layout is the reading of the header figures that a dialer uses. A listener takes both.
type Layout uint8

// The layouts.
const (
	Figure Layout = iota // literal
	IBTA                 // as on InfiniBand
)

// String returns "figure" or "ibta".
func (l Layout) String() string { return sdpwire.Layout(l).String() }

// Timers are the times that a connection acts on by itself. A zero field takes the default.
type Timers struct {
	LocalRead    time.Duration // a SrcAvail without reader is fetched into local memory after this; default 1 ms
	Deadlock     time.Duration // both ends advertise and neither reads; default 10 ms, the Connecting Peer waits twice longer again
	Unanswered   time.Duration // a SrcAvail without answer goes by Bcopy if it fits SendBudget; default 1 s
	Cancel       time.Duration // an unanswered cancel ends the connection; default 5 s
	Suspend      time.Duration // as above for a suspension; default 5 s
	Hysteresis   time.Duration // least time between two changes of mode by policy; default 1 s
	ModeAck      time.Duration // wait before asking for the acknowledgement of a ModeChange; default 200 ms
	Nudge        time.Duration // payload stopped at two credits asks for more after this; default 5 ms
	SuspendLimit int           // suspensions answered per minute, at most 8; default 4, negative for no limit

	// LocalRead, Deadlock [D-38], Unanswered, Cancel [D-81], Suspend [D-53], Hysteresis [D-42],
	// ModeAck [D-45], Nudge [D-10], SuspendLimit [D-55].
}

// Counters count what the two half-connections have done since the connection began: bytes
// of payload by mechanism (Bcopy, Prefix, Transact, Read, Write), messages, credit stalls,
// advertisements, cancels and changes of mode.
type Counters struct {
	SentBytesBcopy     uint64 // payload of Data
	SentBytesPrefix    uint64 // payload of SrcAvail
	SentBytesTransact  uint64 // payload of SinkAvail
	SentBytesRead      uint64 // taken by the peer's RDMA Reads, when acknowledged
	SentBytesWrite     uint64 // by RDMA Write
	RecvBytesBcopy     uint64
	RecvBytesPrefix    uint64
	RecvBytesTransact  uint64
	RecvBytesRead      uint64 // fetched by RDMA Read
	RecvBytesWrite     uint64 // written by the peer, when acknowledged
	SentMessages       uint64
	RecvMessages       uint64
	SentCreditUpdates  uint64 // empty Data messages
	CreditStalls       uint64 // times that payload had to wait for credit
	SentSrcAvails      uint64
	RecvSrcAvails      uint64
	SentSinkAvails     uint64
	RecvSinkAvails     uint64
	StaleSinkAvails    uint64 // received and discarded by the counter
	Overrides          uint64 // SrcAvails given up for a SinkAvail
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
