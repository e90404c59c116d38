package fc

// farpTries is the number of broadcasts of a FARP-REQ, at intervals of E_D_TOV. [FCVI 7.5]
const farpTries = 3

// A farpSearch is a FARP-REQ of this port waiting for a reply.
type farpSearch struct {
	req   FARP
	tries int
	timer *Timer
	done  func(now Time, found FARP, err error)
}

// A farpSeen identifies an answered FARP-REQ of another port.
type farpSeen struct {
	from Addr
	oxid uint16
	at   Time
}

// FARP broadcasts a search for a port and calls done once: with the reply, with ErrNoMatch if no
// port replies, or with ErrOffline if this port is not online or has 256 searches in progress.
// match selects the Responder fields of want describing the port. FARP accepts only replies to the
// sent request.
func (p *NPort) FARP(now Time, match uint8, want FARP, flags uint8, done func(now Time, found FARP, err error)) {
	if !p.up || p.state != Online {
		done(now, FARP{}, ErrOffline)
		return
	}
	if len(p.farps) >= 256 {
		done(now, FARP{}, ErrOffline)
		return
	}
	s := &farpSearch{req: want, tries: farpTries, done: done}
	s.req.Cmd, s.req.Match, s.req.Flags = ELSFARPReq, match, flags
	s.req.ReqID, s.req.RespID = p.id, 0
	s.req.ReqPortName, s.req.ReqNode = p.cfg.PortName, p.cfg.NodeName
	s.req.ReqIP = [16]byte{}
	if len(p.ips) > 0 {
		s.req.ReqIP = p.ips[0]
	}
	s.timer = p.timers.New(func(now Time) { p.farpSend(now, s) })
	p.farps = append(p.farps, s)
	p.farpSend(now, s)
}

func (p *NPort) farpSend(now Time, s *farpSearch) {
	if s.tries == 0 {
		p.farpEnd(now, s, FARP{}, ErrNoMatch)
		return
	}
	if s.tries < farpTries {
		p.stats.Retries++
	}
	s.tries--
	s.timer.Set(now + p.edtov)
	s.req.ReqID = p.id
	tx := Frame{SOF: SOFi3, EOF: EOFt, Payload: s.req.Append(nil), Header: Header{
		RCtl: RCtlELSReq, DID: AddrBroadcast, SID: p.id, Type: TypeELS, SeqID: p.seqID(AddrBroadcast),
		// The request does not pass Sequence Initiative, because the reply is no sequence of the
		// exchange.
		FCtl: FCtlFirstSeq | FCtlLastSeq | FCtlEndSeq, OXID: p.allocOX(), RXID: Unassigned, // [FCVI-7.5-7]
	}}
	p.transmit(&tx)
}

func (p *NPort) farpEnd(now Time, s *farpSearch, found FARP, err error) {
	for i, o := range p.farps {
		if o == s {
			p.farps = append(p.farps[:i], p.farps[i+1:]...)
			break
		}
	}
	s.timer.Stop()
	s.done(now, found, err)
}

// receiveFARPReq answers a FARP-REQ describing this port, once per R_A_TOV, and ignores all others.
// [FCVI 7.5]
func (p *NPort) receiveFARPReq(now Time, f *Frame) {
	q, _, err := ParseFARP(f.Payload)
	if err != nil {
		p.stats.Malformed++
		return
	}
	if q.ReqID != f.SID || f.SID == 0 || q.ReqPortName == p.cfg.PortName {
		p.stats.FARPForged++
		return
	}
	ip, ok := q.matches(p.cfg.PortName, p.cfg.NodeName, p.ips) // [FCVI-7.5-5] [FCVI-7.5-8]
	if !ok || p.state != Online {
		return
	}
	n := 0
	for _, s := range p.farpAns {
		if s.from == f.SID && s.oxid == f.OXID && now-s.at < p.ratov { // [FCVI-7.5-6]
			p.stats.Duplicates++
			return
		}
		if now-s.at < p.ratov {
			p.farpAns[n] = s
			n++
		}
	}
	p.farpAns = p.farpAns[:n]
	if n < 256 {
		p.farpAns = append(p.farpAns, farpSeen{f.SID, f.OXID, now})
	}
	if q.Flags&FARPInitReply != 0 { // [FCVI-7.5-4]
		a := q
		a.Cmd, a.RespID = ELSFARPReply, p.id
		a.RespPortName, a.RespNode, a.RespIP = p.cfg.PortName, p.cfg.NodeName, ip
		p.request(now, f.SID, TypeELS, a.Append(nil), 1, func(Time, []byte, error) {})
	}
	if q.Flags&FARPInitPLOGI != 0 {
		p.Login(now, f.SID, func(Time, *Remote, error) {})
	}
}

// receiveFARPReply handles a reply to a search of this port. A reply without a request is ignored,
// as is a reply contradicting the request or the reply's own source address.
func (p *NPort) receiveFARPReply(now Time, f *Frame) {
	a, _, err := ParseFARP(f.Payload)
	if err != nil {
		p.malformedELS(f)
		return
	}
	for _, s := range p.farps {
		q := &s.req
		if a.Match != q.Match || a.ReqID != p.id || a.ReqPortName != q.ReqPortName ||
			a.ReqNode != q.ReqNode || a.ReqIP != q.ReqIP {
			continue
		}
		if a.RespID != f.SID || f.SID == 0 || f.SID.WellKnown() || a.RespPortName == 0 {
			continue
		}
		if _, ok := q.matches(a.RespPortName, a.RespNode, [][16]byte{a.RespIP}); !ok {
			continue
		}
		p.accept(f, AppendCmd(nil, ELSAcc))
		p.farpEnd(now, s, a, nil)
		return
	}
	p.stats.FARPForged++
	p.rejectELS(f, RjtLogical, ExplNone)
}
