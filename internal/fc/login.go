package fc

import (
	"time"

	"viaduct/internal/fault"
)

// params returns this port's service parameters for FLOGI, PLOGI and their answers.
func (p *NPort) params(cmd ELSCmd) Login {
	l := Login{
		Cmd: cmd, VersionHigh: 0x20, VersionLow: 0x20, BBCredit: 16,
		RxSize: uint16(p.cfg.RxSize), EDTOV: uint32(p.edtov / time.Millisecond),
		PortName: p.cfg.PortName, NodeName: p.cfg.NodeName,
	}
	class := ClassParams{Options: ClassValid, RxSize: uint16(p.cfg.RxSize), Concurrent: 255, OpenSeqs: 1}
	if cmd == ELSFLOGI {
		l.EDTOV = 0
		class.Options |= ClassInOrder
	} else {
		l.Features = FeatCIRO | FeatRandomRO | FeatCISeqCnt // [FCVI 5.5]
		l.Word3 = 255<<16 | 0x00FF
	}
	l.Class[2] = class
	if p.cfg.Class2 {
		class.EECredit = uint16(p.cfg.EECredit)
		l.Class[1] = class
	}
	return l
}

// flogi sends FLOGI. The answer shows whether a fabric or an N_Port is at the other end of the
// link: a fabric assigns an address, and an N_Port announces its name.
func (p *NPort) flogi(now Time) {
	p.setState(now, LoggingIn)
	l := p.params(ELSFLOGI)
	epoch := p.epoch
	x := &exchange{p: p, peer: AddrFPort, typ: TypeELS, payload: l.Append(nil), tries: 3, every: 2 * p.ratov}
	if p.link.Loop {
		x.src = Addr(p.link.ALPA)
	}
	x.done = func(now Time, reply []byte, err error) {
		if p.epoch != epoch || p.state != LoggingIn {
			return
		}
		var l Login
		if err == nil {
			l, _, err = ParseLogin(reply)
		}
		if err != nil {
			p.log("flogi failed", "err", err)
			p.timers.After(now+p.ratov, func(now Time) {
				if p.epoch == epoch && p.state == LoggingIn {
					p.flogi(now)
				}
			})
			return
		}
		if l.Features&FeatFPort == 0 {
			p.pointToPoint(now, &l)
			return
		}
		p.fabricLogin(now, &l)
	}
	x.timer = p.timers.New(x.expired)
	p.flogiX = x
	x.send(now)
}

// fabricLogin handles the F_Port's LS_ACC. If this port, the F_Port and the fabric are unchanged,
// logins and exchanges continue. [FCVI 7.7.4] [FCVI 7.7.5]
func (p *NPort) fabricLogin(now Time, l *Login) {
	same := p.id == p.accepted && p.fabricPort == l.PortName && p.fabricName == l.NodeName // [FCVI-7.7-5]
	was := p.id
	p.id, p.fabricPort, p.fabricName = p.accepted, l.PortName, l.NodeName
	if !same && was != 0 {
		p.logoutAll(now, was) // the LOGOs are sent from the new address and name the old address
	}
	p.topo = FabricAttached
	if p.link.Loop {
		p.topo = PublicLoop
	}
	p.inOrder = l.Class[2].Options&ClassInOrder != 0
	if l.Word3 != 0 {
		p.ratov = time.Duration(l.Word3) * time.Millisecond
	}
	if l.EDTOV != 0 {
		p.edtov = time.Duration(l.EDTOV) * time.Millisecond
		if l.Features&FeatEDTOVns != 0 {
			p.edtov = time.Duration(l.EDTOV)
		}
	}
	p.setState(now, Registering)
	p.register(now)
}

// register registers this port with the directory, one request after the other. Then it asks the
// fabric controller to report state changes. If a registration fails, register skips the remaining
// ones, and the port comes online without a directory. [FCVI 7.6] [FCVI-7.6-2]
func (p *NPort) register(now Time) {
	p.directory = false
	type step struct {
		cmd  CTCmd
		body NSBody
	}
	steps := []step{
		{NSRPNID, NSBody{}.ID(p.id).Name(p.cfg.PortName)},
		{NSRNNID, NSBody{}.ID(p.id).Name(p.cfg.NodeName)},
	}
	var types FC4Map
	for t, u := range p.upper {
		if u != nil && !fault.On("fc-types") {
			types.Set(Type(t))
		}
	}
	steps = append(steps, step{NSRFTID, NSBody{}.ID(p.id).Bytes(types[:]...)})
	for t, u := range p.upper {
		if u != nil {
			steps = append(steps, step{NSRFFID, NSBody{}.ID(p.id).Bytes(0, 0, 0, byte(t))})
		}
	}
	for _, ip := range p.ips {
		steps = append(steps, step{NSRIPPID, NSBody{}.ID(p.id).Bytes(ip[:]...)})
	}
	if len(p.ips) > 0 {
		steps = append(steps, step{NSRIPNN, NSBody{}.Name(p.cfg.NodeName).Bytes(p.ips[0][:]...)})
	}
	epoch := p.epoch
	var next func(now Time, i int)
	next = func(now Time, i int) {
		if i == len(steps) {
			p.directory = true
			p.registered(now)
			return
		}
		p.Query(now, steps[i].cmd, steps[i].body, func(now Time, _ []byte, err error) {
			if p.epoch != epoch {
				return
			}
			if err != nil {
				p.log("registration failed", "command", steps[i].cmd.String(), "err", err)
				p.registered(now)
				return
			}
			next(now, i+1)
		})
	}
	next(now, 0)
}

func (p *NPort) registered(now Time) {
	if !p.cfg.NoSCR {
		p.request(now, AddrFabricController, TypeELS, SCR{SCRFull}.Append(nil), 3, func(now Time, _ []byte, err error) {
			if err != nil {
				p.log("state change registration failed", "err", err)
			}
		})
	}
	p.setState(now, Online)
	for _, r := range p.sortedRemotes() {
		if r.suspended && !r.verifying {
			if p.topo == PublicLoop && r.Addr>>8 == 0 {
				p.verify(now, r) // r is on the loop of this port [FCVI 7.7.4]
				continue
			}
			p.resume(now, r)
		}
	}
}

// pointToPoint handles an N_Port as peer. The port with the higher Port_Name assigns both
// addresses, by a PLOGI. [FCFS-2.7-4]
func (p *NPort) pointToPoint(now Time, peer *Login) {
	p.topo, p.inOrder, p.directory = PointToPoint, true, false
	if x := p.flogiX; x != nil { // the answer is no longer needed
		x.timer.Stop()
		delete(p.exch, x.oxid)
		p.flogiX = nil
	}
	p.ratov = 2 * p.edtov
	if p.cfg.PortName <= peer.PortName {
		return // the peer sends the PLOGI
	}
	p.id = 1
	p.setState(now, Registering)
	epoch := p.epoch
	var try func(now Time)
	try = func(now Time) {
		p.Login(now, 2, func(now Time, _ *Remote, err error) {
			if p.epoch != epoch {
				return
			}
			if err != nil {
				p.timers.After(now+p.edtov, func(now Time) {
					if p.epoch == epoch && p.state == Registering {
						try(now)
					}
				})
				return
			}
			p.setState(now, Online)
		})
	}
	try(now)
}

// loopUp handles a LIP on a private loop. No data is sent to a port until ADISC has shown that the
// port is unchanged. [FCVI 7.7.3] [FCVI-7.7-3]
func (p *NPort) loopUp(now Time, info LinkInfo) {
	id := Addr(info.ALPA)
	was, other := p.id, p.id != id || p.topo != PrivateLoop
	p.id = id
	if other {
		p.logoutAll(now, was)
	}
	p.topo, p.inOrder, p.directory = PrivateLoop, true, false
	p.failExchanges(now, ErrOffline)
	p.setState(now, Online)
	for _, r := range p.sortedRemotes() {
		p.verify(now, r)
	}
}

// publicLoopUp handles a LIP on a loop with a fabric port. If a FAN announces the known fabric,
// logins and exchanges continue. Otherwise FLOGI decides. [FCVI 7.7.4]
func (p *NPort) publicLoopUp(now Time, info LinkInfo) {
	p.suspendAll()
	p.failExchanges(now, ErrOffline)
	if p.topo == PublicLoop && p.id.ALPA() == info.ALPA {
		p.setState(now, LoggingIn)
		epoch := p.epoch
		p.timers.After(now+p.edtov, func(now Time) {
			if p.epoch == epoch && p.state == LoggingIn {
				p.flogi(now)
			}
		})
		return
	}
	p.flogi(now)
}

// fan handles a FAN after a LIP. If the fabric and the loop are unchanged, logins continue.
// Otherwise the port sends FLOGI. [FCVI-7.7-4]
func (p *NPort) fan(now Time, f FAN) {
	if p.topo != PublicLoop || p.state != LoggingIn {
		return
	}
	if f.PortName == p.fabricPort && f.FabricName == p.fabricName && f.LoopFabric>>8 == p.id>>8 {
		p.setState(now, Registering)
		p.register(now)
		return
	}
	p.flogi(now)
}
