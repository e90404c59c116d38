package mpa

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// A ResponderConfig determines the Reply of a [Responder].
type ResponderConfig struct {
	PlainOnly bool // support revision 1 only [MPA2-10-7]
	Markers   bool // request markers in the FPDUs that this side receives [I-09]
	CRC       bool // request CRCs
	RTR       RTR  // the kinds that this side can receive; 0 means all [MPA2-9.2-3]
	ForceRTR  RTR  // answer every offer with exactly these kinds [I-07]

	IRD    uint16 // number of Reads to serve if the peer's ORD is unknown, 0..MaxDepth
	ORD    uint16 // number of Reads that this side wants outstanding, 0..MaxDepth
	MaxIRD uint16 // maximum number of Reads to serve; 0 means DefaultMaxDepth
	// NoReads means that no Read is served except as RTR.
	NoReads bool
	MinORD  uint16 // reject a peer that serves fewer reads than this [MPA2-9.1-8]

	MaxPrivate int // maximum PD_Length to send; 0 means DefaultMaxPrivate

	// SendEarly lifts the rule that a Responder sends no FPDU before it has received one. SendEarly
	// is for ULPs that negotiate the Initiator's readiness themselves. [MPA 7.1.2 deviates] [I-77]
	SendEarly bool
}

// A Responder is the machine of the side waiting for the Request. It does no I/O and has no clock.
// Only one goroutine at a time may use a Responder.
type Responder struct {
	cfg    ResponderConfig
	req    Frame
	state  State
	params Params
	err    error
}

// NewResponder returns a Responder in state AwaitRequest.
func NewResponder(cfg ResponderConfig) (*Responder, error) {
	if cfg.IRD > MaxDepth || cfg.ORD > MaxDepth || cfg.MaxIRD > MaxDepth {
		return nil, fmt.Errorf("mpa: depth above %d", MaxDepth)
	}
	if cfg.RTR == 0 {
		cfg.RTR = RTRSend | RTRWrite | RTRRead
	}
	if cfg.MaxIRD == 0 {
		cfg.MaxIRD = DefaultMaxDepth
	}
	cfg.MaxIRD = max(cfg.MaxIRD, cfg.IRD)
	if cfg.NoReads {
		cfg.IRD, cfg.MaxIRD = 0, 0
	}
	return &Responder{cfg: cfg, state: AwaitRequest}, nil
}

// State returns the state of the machine.
func (r *Responder) State() State { return r.state }

// Params returns the fields of the Request after the action Ask, and the agreed parameters after
// Accept.
func (r *Responder) Params() Params { return r.params }

// Err returns the reason why the machine has ended, and nil in the other states.
func (r *Responder) Err() error { return r.err }

// Frame returns the Request after the action Ask.
func (r *Responder) Frame() Frame { return r.req }

// Receive handles all received bytes. Each call gets the earlier bytes again. It returns the number
// of bytes that belong to the Request, and the next action. Nothing is sent before a valid Request
// is complete. Bytes after the Request make the Request malformed.
func (r *Responder) Receive(b []byte) (n int, act Action) {
	if r.state != AwaitRequest {
		return 0, r.again()
	}
	f, n, err := ParseFrame(b)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return 0, Wait // [MPA-7.1.2-3]
	case err != nil: // [MPA-7.1.1-2] [MPA-7.1.1-17] [MPA-7.1.1-20] [MPA-7.1.2-4] [MPA-7.1.2-16]
		return 0, r.end(Close, badFrame(err))
	case f.Kind != Request:
		return 0, r.end(Close, badFrame(ErrTwoResponders))
	case r.cfg.PlainOnly && f.Rev != 1: // [MPA2-10-7]
		return 0, r.end(Close, badFrame(fmt.Errorf("%w %d, only 1 is enabled", ErrRevision, f.Rev)))
	case len(b) > n: // [MPA-7.1.2-24] [I-11]
		return 0, r.end(Close, badFrame(ErrTrailing))
	}
	f.Private = bytes.Clone(f.Private) // [MPA-7.1.2-23]
	r.req = f                          // the R bit of a Request has no meaning [MPA-7.1.1-11]
	p := &r.params
	p.Rev, p.Enhanced = f.Rev, f.Enhanced         // [MPA2-6-7] [MPA2-10-4] [MPA-7.1.1-18]
	p.PeerIRD, p.PeerORD = f.Conn.IRD, f.Conn.ORD // [MPA2-9.1-4]
	p.Private = f.Private                         // [MPA-7.1.1-21]
	p.SendMarkers = f.Markers                     // [MPA-7.1.1-6]
	p.RecvMarkers = r.cfg.Markers
	p.CRC = f.CRC || r.cfg.CRC // [MPA-7.1.1-9] [MPA-4.4-7]
	r.depths()
	r.model()
	r.state = AwaitULP
	return n, Ask
}

// depths computes IRD and ORD. The configuration limits the values of the peer. [MPA2-12-1] [I-18]
func (r *Responder) depths() {
	p, c := &r.params, r.req.Conn
	p.IRD, p.ORD = r.cfg.IRD, r.cfg.ORD
	if !r.req.Enhanced { // [I-19]
		p.ORD = min(p.ORD, PlainORD)
		return
	}
	if c.ORD != DepthULP { // otherwise the value of this side stays [MPA2-9.1-15]
		p.IRD = min(c.ORD, r.cfg.MaxIRD) // [MPA2-9.1-2]
	}
	if c.IRD != DepthULP { // otherwise the value of this side stays [MPA2-9.1-17]
		p.ORD = min(p.ORD, c.IRD) // [MPA2-9.1-5] [MPA2-9.1-7]
	}
}

// model computes the kinds of RTR: the offered kinds the Responder can receive. If there are none,
// model ignores the offer and names the kinds the Responder can receive. It names Send only if
// neither Write nor Read is possible. [MPA2-9.2-4] [MPA2-9.2-5] [MPA2-9.2-6] [MPA2-9.2-7]
// [MPA2-9.2-9] [I-07]
func (r *Responder) model() {
	p, c := &r.params, r.req.Conn
	if !r.req.Enhanced || !c.PeerToPeer { // B, C, D are ignored [MPA2-9.2-14] [MPA2-9.2-16]
		return
	}
	p.PeerToPeer = true
	const usual = RTRWrite | RTRRead
	switch {
	case r.cfg.ForceRTR != 0:
		p.RTR = r.cfg.ForceRTR
	case c.RTR&r.cfg.RTR&usual != 0:
		p.RTR = c.RTR & r.cfg.RTR & usual
	case c.RTR&r.cfg.RTR != 0:
		p.RTR = c.RTR & r.cfg.RTR
	case r.cfg.RTR&usual != 0:
		p.RTR = r.cfg.RTR & usual
	default:
		p.RTR = r.cfg.RTR
	}
	if p.RTR&RTRRead != 0 && p.IRD == 0 { // the RTR itself is a Read, so it needs one [MPA2-9.1-6]
		p.IRD = 1
	}
}

// A Decision is the answer of the ULP to a Request. The zero value uses the depths of the
// configuration and sends no private data.
type Decision struct {
	Private []byte // private data of the Reply
	// LowerIRD and LowerORD, if positive, limit the depths further.
	LowerIRD, LowerORD uint16
}

// Accept returns the bytes of the accepting Reply, to be sent in a single write. All bytes received
// afterwards are FPDUs. The machine moves to AwaitFPDU, and nothing may be sent before a valid FPDU
// was received. With SendEarly the machine moves to Full, and the Responder may send at once.
//
// If the peer serves fewer Reads than MinORD, the frame is a rejection without a Terminate, and the
// error is an *Error of CodeInsufficientIRD. If the private data does not fit, the error wraps
// ErrPrivateTooLong, there is no frame, and Accept or Reject can be called again.
func (r *Responder) Accept(d Decision) ([]byte, error) {
	r.mustAwaitULP("Accept")
	if err := checkPrivate(len(d.Private), r.req.Enhanced, r.cfg.MaxPrivate); err != nil {
		return nil, err
	}
	if r.req.Enhanced && r.req.Conn.IRD != DepthULP && r.req.Conn.IRD < r.cfg.MinORD { // [I-17]
		need := &Error{Code: CodeInsufficientIRD,
			Reason: fmt.Sprintf("peer serves %d reads, at least %d wanted", r.req.Conn.IRD, r.cfg.MinORD)}
		b, err := r.Reject(nil)
		if err != nil {
			return nil, err
		}
		r.err = need
		return b, need
	}
	p := &r.params
	if d.LowerIRD > 0 {
		p.IRD = min(p.IRD, d.LowerIRD)
	}
	if d.LowerORD > 0 {
		p.ORD = min(p.ORD, d.LowerORD)
	}
	r.state = AwaitFPDU // [MPA-7.1.2-10] [MPA-7.1.2-15]
	if r.cfg.SendEarly {
		r.state = Full
	}
	return r.reply(false, p.ORD, d.Private).Append(nil), nil // [MPA-7.1.2-8] [MPA-7.1.2-9]
}

// Reject returns the bytes of the rejecting Reply with the ULP's private data, and ends the
// machine. The TCP connection stays open, and the ULP may use or close it.
func (r *Responder) Reject(private []byte) ([]byte, error) {
	r.mustAwaitULP("Reject")
	if err := checkPrivate(len(private), r.req.Enhanced, r.cfg.MaxPrivate); err != nil {
		return nil, err
	}
	// The depths in the frame are the depths needed here [I-16]. The private data is the ULP's.
	// [MPA-7.1.2-5] [MPA-7.1.2-18] [MPA-7.1.2-6]
	f := r.reply(true, max(r.params.ORD, r.cfg.MinORD), private)
	r.state = Ended // [MPA-7.1.2-7]
	return f.Append(nil), nil
}

// reply returns the Reply. It repeats the revision and the S bit of the Request [I-04]. It copies
// nothing else of the Request, in particular neither R nor reserved bits. [MPA2-10-1] [MPA2-10-2]
// [MPA2-10-5] [MPA2-10-6]
func (r *Responder) reply(reject bool, ord uint16, private []byte) Frame {
	p := &r.params
	f := Frame{
		Kind:     Reply,
		Markers:  r.cfg.Markers,
		CRC:      p.CRC, // the agreed value, because some Initiators that demand CRCs reject a 0 [I-05]
		Reject:   reject,
		Rev:      r.req.Rev,
		Enhanced: r.req.Enhanced,
		Private:  private,
	}
	if f.Enhanced {
		f.Conn = Enhanced{PeerToPeer: p.PeerToPeer, RTR: p.RTR, IRD: p.IRD, ORD: ord} // [MPA2-9.1-3]
		if r.req.Conn.ORD == DepthULP {                                               // [MPA2-9.1-15]
			f.Conn.IRD = DepthULP
		}
		if r.req.Conn.IRD == DepthULP { // [MPA2-9.1-17]
			f.Conn.ORD = DepthULP
		}
	}
	return f
}

// FirstFPDU handles the first valid FPDU. is is the kind of RTR matching the form of the FPDU, or
// 0. The result is true if the FPDU is the agreed RTR; the ULP must not see the RTR. After any
// valid FPDU the Responder may send.
func (r *Responder) FirstFPDU(is RTR) (rtr bool) {
	if r.state != AwaitFPDU && r.state != Full {
		panic("mpa: first FPDU in state " + r.state.String())
	}
	r.state = Full // [MPA-7.1.2-15]
	// [I-21]
	return r.params.PeerToPeer && is&r.params.RTR != 0
}

// Timeout handles the time limit of start-up. The complete Request did not arrive in time, or in
// the peer-to-peer model the first FPDU. [MPA-7.1.2-21] [MPA-7.1.2-25] [I-14]
func (r *Responder) Timeout() Action {
	switch r.state {
	case AwaitRequest, AwaitFPDU:
		return r.end(Close, ErrTimeout)
	}
	return r.again()
}

// Lost handles the end or failure of the stream during start-up.
func (r *Responder) Lost(cause error) Action {
	switch r.state {
	case AwaitRequest, AwaitULP, AwaitFPDU:
		return r.end(Close, &Error{Code: CodeClosed, Err: cause})
	}
	return r.again()
}

func (r *Responder) mustAwaitULP(what string) {
	if r.state != AwaitULP {
		panic("mpa: " + what + " in state " + r.state.String())
	}
}

func (r *Responder) end(act Action, err error) Action {
	r.state, r.err = Ended, err
	return act
}

// again returns the action for an event without meaning in the current state.
func (r *Responder) again() Action {
	switch r.state {
	case Full:
		return Operate
	case Ended:
		return Close
	}
	return Wait
}
