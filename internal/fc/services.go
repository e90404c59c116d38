package fc

// receiveELS answers an extended link service request. A request is a single frame; any other frame
// counts as malformed.
func (p *NPort) receiveELS(now Time, f *Frame) {
	cmd := CmdOf(f.Payload)
	if cmd == 0 || !f.SOF.First() || !f.Last() || f.FromResponder() {
		p.stats.Malformed++
		return
	}
	switch cmd {
	case ELSFLOGI:
		p.receiveFLOGI(now, f)
	case ELSPLOGI:
		p.receivePLOGI(now, f)
	case ELSLOGO:
		l, _, err := ParseLOGO(f.Payload)
		if err != nil {
			p.malformedELS(f)
			return
		}
		p.accept(f, AppendCmd(nil, ELSAcc))
		// A LOGO ends only the sender's logins.
		if r := p.remotes[f.SID]; r != nil && r.LoggedIn() && l.ID == f.SID && l.PortName == r.PortName {
			p.logout(now, r, ErrLoggedOut)
		}
	case ELSADISC, ELSPDISC:
		p.receiveDISC(now, f, cmd)
	case ELSRTV:
		p.accept(f, RTVAcc{RATOV: uint32(p.ratov.Milliseconds()), EDTOV: uint32(p.edtov.Milliseconds())}.Append(nil))
	case ELSECHO:
		p.txBuf = AppendCmd(p.txBuf[:0], ELSAcc)
		p.txBuf = append(p.txBuf, f.Payload[4:]...)
		p.accept(f, p.txBuf)
	case ELSRRQ, ELSLKA:
		p.accept(f, AppendCmd(nil, ELSAcc))
	case ELSFARPReq:
		p.receiveFARPReq(now, f)
	case ELSFARPReply:
		p.receiveFARPReply(now, f)
	case ELSFAN:
		fan, _, err := ParseFAN(f.Payload)
		if err != nil || f.SID != AddrFPort {
			p.stats.Malformed++
			return
		}
		p.fan(now, fan) // a FAN gets no answer
	case ELSRSCN:
		p.receiveRSCN(now, f)
	default:
		p.rejectELS(f, RjtNotSupported, ExplUnsupported) // [FCFS-2.7-6] [FCFS-2.7-7]
	}
}

func (p *NPort) accept(f *Frame, payload []byte) {
	tx := p.reply(f, RCtlELSReply, TypeELS)
	tx.SOF, tx.EOF = SOFi3, EOFt
	tx.FCtl |= FCtlLastSeq | FCtlEndSeq
	tx.Payload = payload
	p.transmit(tx)
}

func (p *NPort) rejectELS(f *Frame, reason, explanation uint8) {
	p.stats.Rejected++
	p.accept(f, LSRjt{Reason: reason, Explanation: explanation}.Append(nil))
}

func (p *NPort) malformedELS(f *Frame) {
	p.stats.Malformed++
	p.rejectELS(f, RjtProtocol, ExplNone)
}

// receiveFLOGI answers the FLOGI of the other N_Port of a point-to-point link.
func (p *NPort) receiveFLOGI(now Time, f *Frame) {
	l, _, err := ParseLogin(f.Payload)
	if err != nil || p.link.Loop || p.topo == FabricAttached || l.PortName == p.cfg.PortName {
		p.stats.Malformed++
		return
	}
	again := p.topo == PointToPoint && p.state >= Registering && f.OXID != p.p2pOX && p.p2pOX != Unassigned
	if f.OXID == p.p2pOX {
		p.stats.Duplicates++
	}
	p.p2pOX = f.OXID
	acc := p.params(ELSAcc)
	tx := p.reply(f, RCtlELSReply, TypeELS)
	tx.SID, tx.DID, tx.SOF, tx.EOF = AddrFPort, f.SID, SOFi3, EOFt
	tx.FCtl |= FCtlLastSeq | FCtlEndSeq
	tx.Payload = acc.Append(nil)
	p.transmit(tx)
	if again { // the peer has restarted, but this side got no link event
		p.epoch++
		p.logoutAll(now, 0)
		p.id = 0
		p.setState(now, LoggingIn)
	}
	if p.state == LoggingIn {
		p.pointToPoint(now, &l)
	}
}

func (p *NPort) receivePLOGI(now Time, f *Frame) {
	l, _, err := ParseLogin(f.Payload)
	if err != nil {
		p.malformedELS(f)
		return
	}
	if f.DID != p.id {
		// On a point-to-point link the PLOGI of the port with the higher name assigns this port's
		// address.
		if p.topo != PointToPoint || l.PortName <= p.cfg.PortName || f.DID.WellKnown() || f.DID == 0 {
			p.stats.WrongDID++
			return
		}
		p.logoutAll(now, 0)
		p.id = f.DID
	}
	r := p.remotes[f.SID]
	if r == nil {
		if len(p.remotes) >= maxRemotes {
			p.rejectELS(f, RjtUnable, ExplResources)
			return
		}
		r = &Remote{Addr: f.SID, p: p, loginOX: Unassigned}
		p.remotes[f.SID] = r
	}
	// A PLOGI from a logged-in port ends the old login. Exceptions are a copy of the earlier PLOGI,
	// a PLOGI that has crossed this port's own, and a PLOGI within R_A_TOV of the login.
	if r.loggedIn {
		switch {
		case r.loginOX == f.OXID:
			p.stats.Duplicates++
		case r.PortName == l.PortName && r.NodeName == l.NodeName && (r.plogi || now-r.since < p.ratov):
		default:
			p.stats.Relogins++
			p.logout(now, r, ErrLoggedOut)
			r = &Remote{Addr: f.SID, p: p, loginOX: Unassigned}
			p.remotes[f.SID] = r
		}
	}
	r.loginOX = f.OXID
	acc := p.params(ELSAcc)
	p.accept(f, acc.Append(nil))
	if r.loggedIn && r.suspended {
		return // the verification in progress decides
	}
	r.login(now, &l)
	if p.topo == PointToPoint && p.state != Online {
		p.setState(now, Online)
	}
}

// receiveDISC answers ADISC and PDISC. Every port must answer both. [FCVI 7.7.3] [FCVI-7.7-7]
func (p *NPort) receiveDISC(now Time, f *Frame, cmd ELSCmd) {
	r := p.remotes[f.SID]
	if cmd == ELSPDISC {
		l, _, err := ParseLogin(f.Payload)
		if err != nil {
			p.malformedELS(f)
			return
		}
		if r == nil || !r.loggedIn || l.PortName != r.PortName || l.NodeName != r.NodeName {
			p.rejectELS(f, RjtUnable, ExplLogin)
			return
		}
		acc := p.params(ELSAcc)
		p.accept(f, acc.Append(nil))
		return
	}
	a, _, err := ParseADISC(f.Payload)
	if err != nil {
		p.malformedELS(f)
		return
	}
	if r == nil || !r.loggedIn {
		p.rejectELS(f, RjtUnable, ExplLogin)
		return
	}
	acc := ADISC{Cmd: ELSAcc, PortName: p.cfg.PortName, NodeName: p.cfg.NodeName, ID: p.id, HardAddr: Addr(p.link.ALPA)}
	p.accept(f, acc.Append(nil))
	if a.PortName != r.PortName || a.NodeName != r.NodeName || a.ID != f.SID {
		p.Logout(now, r)
	}
}

// receiveRSCN verifies every login whose port the state change may concern. [FCVI 7.7.5]
func (p *NPort) receiveRSCN(now Time, f *Frame) {
	if f.SID != AddrFabricController {
		p.stats.Malformed++
		p.rejectELS(f, RjtUnable, ExplNone)
		return
	}
	var pages []RSCNPage
	if err := ParseRSCN(f.Payload, func(pg RSCNPage) { pages = append(pages, pg) }); err != nil {
		p.malformedELS(f)
		return
	}
	p.accept(f, AppendCmd(nil, ELSAcc))
	for _, r := range p.sortedRemotes() {
		for _, pg := range pages {
			if !r.Addr.WellKnown() && pg.Covers(r.Addr) {
				p.inquire(now, r)
				break
			}
		}
	}
}

type abortKey struct {
	peer      Addr
	oxid      uint16
	responder bool
}

type abort struct {
	timer *Timer
	done  func(now Time, accepted bool)
}

// Abort sends ABTS for an exchange with r, as its originator or responder, and calls done once.
// accepted is true for BA_ACC. It is false for BA_RJT and after 2 x R_A_TOV without an answer.
// Abort calls done(false) at once if the link is down, r is logged out, or an ABTS for the exchange
// is outstanding. [FCFS-2.8-1] [FCFS-2.8-3]
func (p *NPort) Abort(now Time, r *Remote, class Class, oxid, rxid uint16, seqID uint8, responder bool, done func(now Time, accepted bool)) {
	k := abortKey{r.Addr, oxid, responder}
	if p.aborts[k] != nil || !p.up || r.gone {
		done(now, false)
		return
	}
	p.Forget(now, r, oxid)
	a := &abort{done: done}
	a.timer = p.timers.After(now+2*p.ratov, func(now Time) {
		delete(p.aborts, k)
		p.stats.Timeouts++
		done(now, false)
	})
	p.aborts[k] = a
	tx := Frame{Header: Header{RCtl: RCtlABTS, DID: r.Addr, SID: p.id, Type: TypeBLS, SeqID: seqID,
		FCtl: FCtlEndSeq | FCtlSeqInit, OXID: oxid, RXID: rxid}}
	if responder {
		tx.FCtl |= FCtlExchResponder
	}
	tx.SOF, tx.EOF = Class3.Delimiters(true, true)
	p.transmit(&tx)
}

// receiveBLS handles ABTS, and the answers to ABTS of this port.
func (p *NPort) receiveBLS(now Time, f *Frame) {
	if f.RCtl != RCtlABTS {
		k := abortKey{f.SID, f.OXID, !f.FromResponder()}
		a := p.aborts[k]
		if a == nil {
			p.stats.UnknownExchange++
			return
		}
		if f.RCtl == RCtlBAAcc {
			if _, _, err := ParseBAAcc(f.Payload); err != nil {
				p.stats.Malformed++
				return
			}
		}
		delete(p.aborts, k)
		a.timer.Stop()
		a.done(now, f.RCtl == RCtlBAAcc)
		return
	}
	r := p.remotes[f.SID]
	known := false
	if r != nil && r.LoggedIn() {
		known = f.OXID >= ServiceOXID
		for _, u := range p.upper {
			known = known || u != nil && u.Abort(now, r, f)
		}
	}
	tx := p.reply(f, RCtlBAAcc, TypeBLS)
	tx.SOF, tx.EOF = SOFi3, EOFt
	tx.FCtl |= FCtlLastSeq | FCtlEndSeq
	p.txBuf = p.txBuf[:0]
	if known {
		tx.Payload = BAAcc{OXID: f.OXID, RXID: f.RXID, HighCnt: 0xFFFF}.Append(p.txBuf)
	} else {
		tx.RCtl = RCtlBARjt // [FCFS-2.8-4]
		tx.Payload = BARjt{Reason: BARjtLogical, Explanation: BARjtInvalidID}.Append(p.txBuf)
	}
	p.txBuf = tx.Payload[:0]
	p.transmit(tx)
}

// ReleaseRecovery sends RRQ for an exchange whose Recovery Qualifier has expired. [FCVI 5.4]
func (p *NPort) ReleaseRecovery(now Time, r *Remote, oxid, rxid uint16) {
	if r.gone || !p.up {
		return
	}
	p.request(now, r.Addr, TypeELS, ExchID{Cmd: ELSRRQ, Originator: p.id, OXID: oxid, RXID: rxid}.Append(nil), 1,
		func(Time, []byte, error) {})
}
