package mpa

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// An InitiatorConfig determines the Request of an [Initiator]. The zero value requests revision 2,
// no CRC, the client-server model and no reads.
type InitiatorConfig struct {
	Plain      bool // revision 1, which has no depths and no peer-to-peer model [MPA2-6-6] [MPA2-10-3]
	Markers    bool // request markers in the FPDUs that this side receives [I-09]
	CRC        bool // request CRCs
	PeerToPeer bool // request the peer-to-peer model; RTR must then name a kind
	RTR        RTR  // the kinds that this side can send [MPA2-9.2-2]

	IRD      uint16 // number of Reads that this side can serve, 0..MaxDepth
	ORD      uint16 // number of Reads that this side wants outstanding, 0..MaxDepth
	MaxIRD   uint16 // limit up to which IRD may be raised for the peer; 0 means IRD
	ULPDepth bool   // announce that the ULP negotiates both depths by other means

	Private    []byte // private data of the ULP, which is copied
	MaxPrivate int    // maximum PD_Length to send; 0 means DefaultMaxPrivate
}

// An Initiator is the machine of the side sending the Request. It does no I/O and has no clock.
// Only one goroutine at a time may use an Initiator.
//
// Either side of the TCP connection may be the Initiator [MPA-7.1-7].
type Initiator struct {
	cfg    InitiatorConfig
	req    Frame
	state  State
	params Params
	err    error
	heard  bool // at least one byte was received
}

// NewInitiator checks cfg and returns an Initiator in state Idle.
func NewInitiator(cfg InitiatorConfig) (*Initiator, error) {
	if err := checkPrivate(len(cfg.Private), !cfg.Plain, cfg.MaxPrivate); err != nil {
		return nil, err
	}
	if cfg.IRD > MaxDepth || cfg.ORD > MaxDepth || cfg.MaxIRD > MaxDepth { // [MPA2-12-1]
		return nil, fmt.Errorf("mpa: depth above %d", MaxDepth)
	}
	if cfg.PeerToPeer && !cfg.Plain && cfg.RTR == 0 {
		return nil, errors.New("mpa: peer-to-peer model without an RTR kind")
	}
	cfg.MaxIRD = max(cfg.MaxIRD, cfg.IRD)
	in := &Initiator{cfg: cfg}
	in.req = Frame{
		Kind:    Request,
		Markers: cfg.Markers,
		CRC:     cfg.CRC,
		Rev:     1, // [MPA-7.1.1-15]
		Private: bytes.Clone(cfg.Private),
	}
	if !cfg.Plain { // [I-01]
		in.req.Rev = 2
		in.req.Enhanced = true
		in.req.Conn = Enhanced{PeerToPeer: cfg.PeerToPeer, IRD: cfg.IRD, ORD: cfg.ORD} // [MPA2-9.1-1]
		if cfg.PeerToPeer {
			in.req.Conn.RTR = cfg.RTR // [MPA2-9.2-1]; otherwise none [MPA2-9.2-13] [MPA2-9.2-15]
		}
		if cfg.ULPDepth {
			in.req.Conn.IRD, in.req.Conn.ORD = DepthULP, DepthULP
		}
	}
	return in, nil
}

// State returns the state of the machine.
func (in *Initiator) State() State { return in.state }

// Params returns the agreed parameters. The result is valid in state Full. After the action Leave
// only the fields of the peer's frame are valid.
func (in *Initiator) Params() Params { return in.params }

// Err returns the reason why the machine has ended, and nil in the other states.
func (in *Initiator) Err() error { return in.err }

// Frame returns the Request.
func (in *Initiator) Frame() Frame { return in.req }

// Start returns the bytes of the Request, to be sent in a single write. No FPDU may be sent before
// Receive has returned Operate.
func (in *Initiator) Start() []byte {
	if in.state != Idle {
		panic("mpa: Initiator started twice")
	}
	in.state = AwaitReply     // [MPA-7.1.2-11]
	return in.req.Append(nil) // [MPA-7.1.2-1] [MPA-7.1.2-2]
}

// Receive handles all bytes received since the Request was sent. Each call gets the earlier bytes
// again. It returns the number of bytes that belong to the Reply, and the next action. Bytes after
// an accepting Reply are FPDUs. Bytes after a rejection belong to the ULP.
func (in *Initiator) Receive(b []byte) (n int, act Action) {
	if in.state != AwaitReply {
		return 0, in.again()
	}
	in.heard = in.heard || len(b) > 0
	f, n, err := ParseFrame(b)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		if f.Kind == Request || in.isRequest(b) {
			return 0, in.end(Close, badFrame(ErrTwoInitiators))
		}
		return 0, Wait
	case err != nil: // [MPA-7.1.1-4] [MPA-7.1.1-17] [MPA-7.1.1-20] [MPA-7.1.2-12] [MPA-7.1.2-16]
		return 0, in.end(Close, badFrame(err))
	case f.Kind != Reply: // [MPA-7.1.2-20]
		return 0, in.end(Close, badFrame(ErrTwoInitiators))
	}
	in.peer(f)
	if f.Reject && f.Rev <= in.req.Rev { // a peer with an older revision may reject in its own form [I-04]
		return n, in.end(Leave, ErrRejected) // [MPA-7.1.2-13] [MPA-7.1.1-12]
	}
	if f.Rev != in.req.Rev || f.Enhanced != in.req.Enhanced { // [I-04]
		return 0, in.end(Close, badFrame(fmt.Errorf("mpa: Reply of revision %d (enhanced %t) to a Request of revision %d (enhanced %t)",
			f.Rev, f.Enhanced, in.req.Rev, in.req.Enhanced)))
	}
	if act := in.agree(f); act != Operate {
		return n, act
	}
	in.state = Full   // [MPA-7.1.2-14] [MPA-7.1-2]
	return n, Operate // the bytes from n on are FPDUs [I-11]
}

// isRequest reports whether b, too short for a frame, can only be the beginning of a Request.
func (in *Initiator) isRequest(b []byte) bool {
	const common = len("MPA ID Re")
	return len(b) > common && b[common] == requestKey[common]
}

// peer stores the fields of the peer's frame for the ULP.
func (in *Initiator) peer(f Frame) {
	p := &in.params
	p.Rev, p.Enhanced = f.Rev, f.Enhanced
	p.PeerIRD, p.PeerORD = f.Conn.IRD, f.Conn.ORD // [MPA2-9.1-14]
	p.Private = bytes.Clone(f.Private)            // [MPA-7.1.1-21] [MPA-7.1.2-23]
}

// agree computes the parameters from both frames, and returns the next action.
func (in *Initiator) agree(f Frame) Action {
	p, q := &in.params, &in.req
	p.SendMarkers = f.Markers // [MPA-7.1.1-5] [MPA-7.1.1-6]
	p.RecvMarkers = q.Markers // [MPA-7.1.1-7]
	p.CRC = q.CRC || f.CRC    // [MPA-7.1.1-8] [MPA-7.1.1-9] [MPA-4.4-7] [MPA-4.4-8]
	p.IRD, p.ORD = in.cfg.IRD, in.cfg.ORD
	if !f.Enhanced { // [I-19]
		p.ORD = min(p.ORD, PlainORD)
		return Operate
	}
	if f.Conn.IRD != DepthULP && !in.cfg.ULPDepth { // [MPA2-9.1-16]
		p.ORD = min(in.cfg.ORD, f.Conn.IRD) // [MPA2-9.1-11] [MPA2-9.3-1]
	}
	if f.Conn.ORD != DepthULP && f.Conn.ORD > p.IRD { // [MPA2-9.1-18]
		if f.Conn.ORD > in.cfg.MaxIRD { // [MPA2-9.1-12] [MPA2-9.1-13] [MPA2-9.1-9]
			return in.end(Terminate, &Error{Code: CodeInsufficientIRD,
				Reason: fmt.Sprintf("peer wants %d reads outstanding, at most %d", f.Conn.ORD, in.cfg.MaxIRD)})
		}
		p.IRD = f.Conn.ORD // [MPA2-9.1-10]
	}
	if !q.Conn.PeerToPeer { // in that case bits A to D of the Reply have no meaning [MPA2-9.2-16]
		return Operate
	}
	p.PeerToPeer = true
	if f.Conn.PeerToPeer {
		p.RTR = f.Conn.RTR
	}
	// The Initiator chooses among the common kinds. It prefers Write, because a Write consumes
	// neither an MSN nor a Read. [MPA2-1.1-1] [MPA2-9.2-10] [I-06]
	both := p.RTR & q.Conn.RTR // kinds that were not offered are ignored [MPA2-9.2-8]
	switch {
	case both&RTRWrite != 0:
		p.Ready = RTRWrite
	case both&RTRRead != 0 && p.ORD > 0: // [MPA2-9.3-1]
		p.Ready = RTRRead
	case both&RTRSend != 0:
		p.Ready = RTRSend
	default: // [MPA2-9.2-11] [MPA2-9.2-12]
		return in.end(Terminate, &Error{Code: CodeNoRTR,
			Reason: fmt.Sprintf("offered %v, accepted %v, ORD %d", q.Conn.RTR, p.RTR, p.ORD)})
	}
	return Operate
}

// Timeout handles the time limit for an incomplete or missing Reply. [MPA-7.1.2-25]
func (in *Initiator) Timeout() Action {
	if in.state != AwaitReply {
		return in.again()
	}
	return in.end(Close, ErrTimeout)
}

// Lost handles the end or failure of the stream before the Reply was complete.
func (in *Initiator) Lost(cause error) Action {
	if in.state != AwaitReply {
		return in.again()
	}
	return in.end(Close, &Error{Code: CodeClosed, Err: cause})
}

// Fail handles a local error after the Reply was accepted and before the first FPDU was sent. The
// connection ends with Terminate 2/0/05. [MPA2-9.3-2]
func (in *Initiator) Fail(cause error) Action {
	if in.state != Full {
		return in.again()
	}
	return in.end(Terminate, &Error{Code: CodeCatastrophic, Err: cause})
}

// MayRetryPlain reports whether a second attempt, in revision 1 on a new connection, can succeed.
// It can if the peer closed without sending a byte, because a Responder without revision 2 must
// close so. [MPA2-10-8] [I-02]
func (in *Initiator) MayRetryPlain() bool {
	e, ok := errors.AsType[*Error](in.err)
	return ok && e.Code == CodeClosed && !in.heard && !in.cfg.Plain
}

func (in *Initiator) end(act Action, err error) Action {
	in.state, in.err = Ended, err
	return act
}

// again returns the action for an event without meaning in the current state.
func (in *Initiator) again() Action {
	if in.state == Full {
		return Operate
	}
	if in.state == Ended {
		return Close
	}
	return Wait
}
