package mpa

import (
	"errors"
	"fmt"
)

// These numbers of start-up are our choice.
const (
	// DefaultDepth is the default number of served and of requested RDMA Reads. [I-18]
	DefaultDepth = 16
	// DefaultMaxDepth is the limit up to which either number may be raised. [I-18]
	DefaultMaxDepth = 128
	// PlainORD is the ORD in revision 1, where no ORD is negotiated. It is the minimum served by
	// every peer. [I-19]
	PlainORD = 1
	// DefaultMaxPrivate is the default maximum of PD_Length. Larger values are legal, but some
	// peers close the connection or fail. [I-12]
	DefaultMaxPrivate = 256
)

// An Action is the next step for the driver of a start-up machine.
type Action uint8

// These are the actions.
const (
	// Wait means: read more bytes of the stream.
	Wait Action = iota
	// Ask means: pass the Request to the ULP, then call Accept or Reject.
	Ask
	// Operate means: full operation begins, with the agreed [Params]. An Initiator in the
	// peer-to-peer model must send Params.Ready as its first FPDU.
	Operate
	// Terminate means: send a Terminate with Err's code as the first FPDU, then close.
	Terminate
	// Leave means: the peer's ULP has rejected the connection. MPA has ended, and TCP belongs to
	// the local ULP.
	Leave
	// Close means: close TCP at once and send nothing. [MPA-8-6]
	Close
)

var actionNames = [...]string{"wait", "ask", "operate", "terminate", "leave", "close"}

// String returns the name of the action in lower case.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("action 0x%02x", uint8(a))
}

// A State is the state of a side's start-up.
type State uint8

// These are the states. The names and arrows come from the table in RFC 5044 7.1.2, as a state
// machine:
//
//	Initiator: Idle -> AwaitReply -> Full | Ended
//	Responder: AwaitRequest -> AwaitULP -> AwaitFPDU -> Full | Ended
const (
	Idle         State = iota // Initiator: nothing was sent
	AwaitReply                // Initiator: the Request was sent, no valid Reply has arrived
	AwaitRequest              // Responder: no valid Request has arrived
	AwaitULP                  // Responder: the ULP must accept or reject
	AwaitFPDU                 // Responder: the Reply was sent; this side may receive and must not send
	Full                      // full operation in both directions
	Ended                     // MPA has ended on this connection
)

var stateNames = [...]string{"idle", "await reply", "await request", "await ULP", "await FPDU", "full", "ended"}

// String returns the name of the state in lower case.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state 0x%02x", uint8(s))
}

// Params are the agreed parameters, from the view of one side.
type Params struct {
	Rev         uint8 // revision of both frames [MPA-7.1.1-18] [MPA-3-13]
	SendMarkers bool  // the peer requested markers [MPA-7.1.1-6] [MPA-7.1.1-7]
	RecvMarkers bool  // this side requested markers
	CRC         bool  // CRCs are computed and checked in both directions [MPA-7.1.1-9]
	Enhanced    bool  // depths and model were negotiated
	PeerToPeer  bool  // the Initiator's first message is an RTR
	RTR         RTR   // kinds of RTR that the Reply names
	Ready       RTR   // Initiator: the kind of RTR that it must send first

	IRD, ORD         uint16 // depths of this side after the exchange
	PeerIRD, PeerORD uint16 // the fields of the peer's frame; 0 in revision 1 [MPA2-9.1-4] [MPA2-9.1-14]

	Private []byte // private data of the peer's ULP [MPA-7.1.1-21]
}

// ErrTwoInitiators reports a Request as the answer to a Request. [MPA-7.1.2-20]
var ErrTwoInitiators = errors.New("mpa: both sides act as Initiator")

// ErrTwoResponders reports a Reply instead of a Request.
var ErrTwoResponders = errors.New("mpa: received a Reply, expected a Request")

// ErrTrailing reports bytes after a Request, before the answer. [MPA-7.1.2-24] [I-11]
var ErrTrailing = errors.New("mpa: data behind the Request")

// ErrRejected is the error of an Initiator if the peer's ULP has rejected the connection.
var ErrRejected = errors.New("mpa: connection rejected by the peer")

// ErrTimeout is the error of a start-up beyond the time limit. [MPA-7.1.2-21] [MPA-7.1.2-25]
var ErrTimeout = errors.New("mpa: start-up timed out")

// ErrPrivateTooLong reports private data of the ULP too long for a frame.
var ErrPrivateTooLong = errors.New("mpa: private data too long")

func badFrame(err error) error { return &Error{Code: CodeFrame, Err: err} }

// checkPrivate returns ErrPrivateTooLong if n bytes of private data would make PD_Length exceed
// limit. A limit of 0 means DefaultMaxPrivate. [MPA-7.1.1-22] [I-12]
func checkPrivate(n int, enhanced bool, limit int) error {
	if limit <= 0 {
		limit = DefaultMaxPrivate
	}
	limit = min(limit, MaxPrivate)
	if enhanced {
		limit -= EnhancedLen
	}
	if n > limit {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrPrivateTooLong, n, limit)
	}
	return nil
}
