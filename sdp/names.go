package sdp

import (
	"time"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// A Policy selects the flow control mode a half-connection changes to.
type Policy uint8

// These are the policies.
const ( // [D-42]
	Auto         Policy = iota // according to the traffic
	PinBuffered                // copies only
	PinCombined                // copies, and one RDMA Read at a time
	PinPipelined               // all mechanisms, many transfers at a time
)

// String returns "auto", "buffered", "combined" or "pipelined".
func (p Policy) String() string { return sdpcore.Policy(p).String() }

// [D-01]

// A Layout is an interpretation of the header figures of the draft. A dialer uses the selected
// layout; a listener accepts both layouts.
type Layout uint8

// These are the layouts.
const (
	Figure Layout = iota // literally as in the figures
	IBTA                 // the header layout of InfiniBand
)

// String returns "figure" or "ibta".
func (l Layout) String() string { return sdpwire.Layout(l).String() }

// Timers are the times after which a connection acts without an event. A zero field selects the
// default.
type Timers struct {
	// LocalRead is the time after which the bytes of a SrcAvail are fetched into local memory if no
	// read waits; default 1 ms.
	LocalRead time.Duration
	// Deadlock is the time after which the local end acts if both ends advertise and neither reads;
	// default 10 ms, and three times as long at the Connecting Peer.
	Deadlock time.Duration
	// Unanswered is the time after which the bytes of an unanswered SrcAvail are sent by Bcopy, if
	// they fit Options.SendBuffer; default 1 s.
	Unanswered time.Duration
	Cancel     time.Duration // time after which an unanswered cancel ends the connection; default 5 s
	Suspend    time.Duration // time after which an unanswered suspension ends the connection; default 5 s
	Hysteresis time.Duration // least time between two changes of mode by policy; default 1 s
	// ModeAck is the time after which an empty Data asks for the acknowledgement of a ModeChange;
	// default 200 ms.
	ModeAck time.Duration
	// Nudge is the time after which payload waiting at two credits asks for more credit; default 5
	// ms.
	Nudge        time.Duration
	SuspendLimit int // suspensions answered per minute, at most 8; default 4, negative for no limit

	// LocalRead, Deadlock [D-38], Unanswered, Cancel [D-81], Suspend [D-53], Hysteresis [D-42],
	// ModeAck [D-45], Nudge [D-10], SuspendLimit [D-55].
}

// Counters count the work of the two half-connections since the connection began: bytes of payload
// by mechanism (Bcopy, Prefix, Transact, Read, Write), messages, credit stalls, advertisements,
// cancels and changes of mode.
type Counters struct {
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
