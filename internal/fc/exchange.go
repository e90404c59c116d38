package fc

import "time"

// maxReplyFrames is the maximum number of frames of a reassembled reply.
const maxReplyFrames = 64

// An exchange is a request originated by this port. The request goes to a link service or a fabric
// service, or aborts another exchange.
type exchange struct {
	p       *NPort
	oxid    uint16
	peer    Addr
	src     Addr // this port's address in the exchange, 0 during FLOGI
	typ     Type
	payload []byte
	tries   int // attempts that remain
	every   time.Duration
	timer   *Timer
	done    func(now Time, reply []byte, err error)

	parts [][]byte // payloads of the reply's frames, by SEQ_CNT
	total int      // number of frames of the reply, 0 while the last frame is missing
}

// request sends payload and calls done once, with the reply's payload or with an error. The payload
// is valid during the call. The error for an LS_RJT is an LSRjt, and for a rejected directory
// request a *CTError. request makes up to tries attempts, each as a new exchange. Without an answer
// the error is ErrTimeout, and without a link ErrOffline.
func (p *NPort) request(now Time, dst Addr, t Type, payload []byte, tries int, done func(now Time, reply []byte, err error)) {
	x := &exchange{p: p, peer: dst, src: p.id, typ: t, payload: payload, tries: tries, every: 2 * p.ratov, done: done}
	x.timer = p.timers.New(x.expired)
	x.send(now)
}

// allocOX returns the next free service OX_ID.
func (p *NPort) allocOX() uint16 {
	for {
		ox := p.nextOX
		p.nextOX++
		if p.nextOX == Unassigned {
			p.nextOX = ServiceOXID
		}
		if _, used := p.exch[ox]; !used {
			return ox
		}
	}
}

func (x *exchange) send(now Time) {
	p := x.p
	if !p.up || len(p.exch) > 4096 {
		x.done(now, nil, ErrOffline)
		return
	}
	x.tries--
	x.oxid = p.allocOX()
	x.parts, x.total = nil, 0
	p.exch[x.oxid] = x
	x.timer.Set(now + x.every)
	rctl := RCtlELSReq
	if x.typ == TypeCT {
		rctl = RCtlUnsolControl
	}
	tx := Frame{SOF: SOFi3, EOF: EOFt, Payload: x.payload, Header: Header{
		RCtl: rctl, DID: x.peer, SID: x.src, Type: x.typ, SeqID: p.seqID(x.peer),
		FCtl: FCtlFirstSeq | FCtlEndSeq | FCtlSeqInit, OXID: x.oxid, RXID: Unassigned,
	}}
	p.transmit(&tx)
}

func (x *exchange) expired(now Time) {
	p := x.p
	delete(p.exch, x.oxid)
	if x.tries > 0 {
		p.stats.Retries++
		x.send(now)
		return
	}
	p.stats.Timeouts++
	x.done(now, nil, ErrTimeout)
}

func (x *exchange) finish(now Time, reply []byte, err error) {
	delete(x.p.exch, x.oxid)
	x.timer.Stop()
	x.done(now, reply, err)
}

// failExchanges ends every outstanding request with err.
func (p *NPort) failExchanges(now Time, err error) {
	var all []*exchange
	for _, x := range p.exch {
		all = append(all, x)
	}
	sortExchanges(all)
	for _, x := range all {
		if p.exch[x.oxid] == x {
			x.finish(now, nil, err)
		}
	}
}

func sortExchanges(all []*exchange) { // by OX_ID, so that simulations are deterministic
	for i := range all {
		for j := i; j > 0 && all[j].oxid < all[j-1].oxid; j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
}

// receiveReply handles a frame of the answer to a request of this port, and accepts answers only
// from the request's destination.
func (p *NPort) receiveReply(now Time, f *Frame) {
	x := p.exch[f.OXID]
	if x == nil || x.typ != f.Type || !f.FromResponder() || f.SID != x.peer && !p.loginAnswer(x, f) {
		p.stats.UnknownExchange++
		return
	}
	if f.SOF.First() && f.Last() && len(x.parts) == 0 {
		x.complete(now, f, f.Payload)
		return
	}
	if len(x.parts) == 0 {
		x.parts = make([][]byte, maxReplyFrames)
	}
	// Frames of a reply may arrive in any order. SEQ_CNT is their index.
	i := int(f.SeqCnt)
	if i >= maxReplyFrames {
		p.stats.Malformed++
		return
	}
	if x.parts[i] == nil {
		x.parts[i] = append([]byte{}, f.Payload...)
	}
	if f.Last() {
		x.total = i + 1
	}
	if x.total == 0 {
		return
	}
	var whole []byte
	for _, part := range x.parts[:x.total] {
		if part == nil {
			return
		}
		whole = append(whole, part...)
	}
	x.complete(now, f, whole)
}

// loginAnswer reports whether f may answer this port's FLOGI. The answer may come from the F_Port,
// or on a point-to-point link from the other N_Port.
func (p *NPort) loginAnswer(x *exchange, f *Frame) bool {
	return x.peer == AddrFPort && (f.SID == AddrFPort || !p.link.Loop)
}

func (x *exchange) complete(now Time, f *Frame, reply []byte) {
	if x.typ == TypeCT {
		h, _, err := ParseCT(reply)
		switch {
		case err != nil:
			x.p.stats.Malformed++
		case h.Cmd == CTReject:
			req, _, _ := ParseCT(x.payload)
			err = &CTError{Cmd: req.Cmd, Reason: h.Reason, Explanation: h.Explanation}
		case h.Cmd != CTAccept:
			x.p.stats.Malformed++
			err = ErrFormat
		default:
			reply = reply[CTLen:]
		}
		x.finish(now, reply, err)
		return
	}
	switch CmdOf(reply) {
	case ELSAcc:
		if x.peer == AddrFPort && x.src == 0 || x.peer == AddrFPort && x.p.link.Loop {
			x.p.accepted = f.DID
		}
		x.finish(now, reply, nil)
	case ELSRjt:
		r, _, err := ParseLSRjt(reply)
		if err != nil {
			x.p.stats.Malformed++
			return
		}
		// A peer that is busy or still logging in may accept the request later. So the request is
		// repeated after E_D_TOV.
		if (r.Reason == RjtBusy || r.Reason == RjtInProgress) && x.tries > 0 {
			delete(x.p.exch, x.oxid)
			x.timer.Set(now + x.p.edtov)
			x.p.exch[x.oxid] = x
			return
		}
		x.finish(now, nil, r)
	default:
		x.p.stats.Malformed++
	}
}

// ELS sends an extended link service request to dst and calls done once with
// the LS_ACC payload or an error.
func (p *NPort) ELS(now Time, dst Addr, payload []byte, done func(now Time, reply []byte, err error)) {
	p.request(now, dst, TypeELS, payload, 2, done)
}

// Query sends a request to the name server and calls done once, with the body of the accept or with
// an error. The port first logs in to the directory server if it is not logged in.
func (p *NPort) Query(now Time, cmd CTCmd, body []byte, done func(now Time, reply []byte, err error)) {
	p.Login(now, AddrDirectory, func(now Time, _ *Remote, err error) {
		if err != nil {
			done(now, nil, err)
			return
		}
		p.request(now, AddrDirectory, TypeCT, AppendNS(nil, cmd, body), 3, done)
	})
}
