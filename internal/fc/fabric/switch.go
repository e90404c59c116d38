package fabric

import (
	"log/slog"
	"time"

	"viaduct/internal/fc"
)

// A SwitchConfig describes a switch.
type SwitchConfig struct {
	Name       fc.WWN // Switch_Name; not zero
	FabricName fc.WWN // 0 means the Switch_Name
	Domain     uint8  // 1 to 239, different for each switch of a fabric
	EDTOV      time.Duration
	RATOV      time.Duration
	OutOfOrder bool   // the switch does not promise sequential delivery
	Epoch      uint32 // first sequence number; larger after each restart, so that neighbours drop the former state
	Logger     *slog.Logger
}

// SwitchStats counts the frames and events of a switch.
type SwitchStats struct {
	Forwarded    uint64
	Broadcasts   uint64
	NoRoute      uint64 // class 3 frames without a receiver
	Rejected     uint64 // class 2 frames without a receiver, answered F_RJT
	Spoofed      uint64 // frames whose S_ID does not belong to the port where they arrived
	Malformed    uint64
	BadEOF       uint64
	Logins       uint64 // FLOGI accepted
	RSCNs        uint64 // reported state changes
	Requests     uint64 // directory requests
	RequestsBad  uint64 // directory requests that were rejected
	DomainClash  uint64 // neighbours refused because they have this switch's domain
	StateUpdates uint64 // accepted items of other switches
}

// A Switch is the core of a fabric domain, and is not safe for concurrent use.
type Switch struct {
	cfg   SwitchConfig
	ports [256]*SwitchPort // by area; 0 is not used
	isls  []*SwitchPort
	dir   directory
	state linkState
	ox    uint16
	stats SwitchStats
	tx    fc.Frame
	buf   []byte
}

// A SwitchPort is a port of a Switch, and a Device.
type SwitchPort struct {
	sw       *Switch
	out      fc.Sender
	area     uint8 // 0 for a port made by NewISL
	isl      bool  // the port is, or will be, an inter-switch link
	up       bool
	loop     bool
	logins   map[fc.Addr]*login // N_Ports that are logged in at the port
	neighbor fc.WWN             // name of the neighbour on an inter-switch link; 0 before its hello
	domain   uint8
}

type login struct {
	port, node fc.WWN
	ox         uint16 // OX_ID of the FLOGI
	scr        bool   // the port has requested reports of state changes
	dirLogin   bool   // logged in with the directory server
}

// NewSwitch returns a switch without ports.
func NewSwitch(cfg SwitchConfig) *Switch {
	if cfg.FabricName == 0 {
		cfg.FabricName = cfg.Name
	}
	if cfg.EDTOV == 0 {
		cfg.EDTOV = fc.DefaultEDTOV
	}
	if cfg.RATOV == 0 {
		cfg.RATOV = fc.DefaultRATOV
	}
	s := &Switch{cfg: cfg}
	s.dir.init()
	s.state.init(s)
	return s
}

// Stats returns a copy of the counters.
func (s *Switch) Stats() SwitchStats { return s.stats }

// Name returns the Switch_Name.
func (s *Switch) Name() fc.WWN { return s.cfg.Name }

// Domain returns the domain.
func (s *Switch) Domain() uint8 { return s.cfg.Domain }

// Logins returns the number of N_Ports logged in.
func (s *Switch) Logins() int {
	n := 0
	for _, p := range s.ports {
		if p != nil {
			n += len(p.logins)
		}
	}
	return n
}

// NewPort returns a port for an N_Port, a loop or another switch; the first login determines which.
// It returns nil if all 255 areas are in use.
func (s *Switch) NewPort(out fc.Sender) *SwitchPort {
	for i := 1; i < len(s.ports); i++ {
		if s.ports[i] == nil {
			p := &SwitchPort{sw: s, out: out, area: uint8(i), logins: map[fc.Addr]*login{}}
			s.ports[i] = p
			return p
		}
	}
	return nil
}

// NewISL returns a port announcing this switch to another switch as soon as the port's link is up.
func (s *Switch) NewISL(out fc.Sender) *SwitchPort {
	return &SwitchPort{sw: s, out: out, isl: true, logins: map[fc.Addr]*login{}}
}

// Remove removes a port from the switch permanently.
func (p *SwitchPort) Remove(now fc.Time) {
	p.LinkDown(now)
	if p.area != 0 && p.sw.ports[p.area] == p {
		p.sw.ports[p.area] = nil
	}
}

// name returns the F_Port_Name.
func (p *SwitchPort) name() fc.WWN {
	return p.sw.cfg.Name&^(0xFFF<<48) | fc.WWN(uint64(p.area)<<48)
}

// LinkUp is called when the link has come up or was initialised again.
func (p *SwitchPort) LinkUp(now fc.Time, info fc.LinkInfo) {
	was := p.up
	p.up, p.loop = true, info.Loop
	switch {
	case p.isl:
		p.sw.state.hello(now, p)
	case info.Loop && was:
		p.fan(now)
	}
}

// LinkDown ends the logins at the port.
func (p *SwitchPort) LinkDown(now fc.Time) {
	if !p.up {
		return
	}
	p.up = false
	for id := range p.logins {
		p.sw.logout(now, p, id)
	}
	p.sw.state.lost(now, p)
	if p.area != 0 {
		p.isl = false
	}
}

func (s *Switch) logout(now fc.Time, p *SwitchPort, id fc.Addr) {
	delete(p.logins, id)
	if s.dir.remove(id) {
		s.state.withdraw(now, id)
	}
	s.changed(now, id, fc.RSCNPort)
}

// Receive handles a frame from the link of p.
func (p *SwitchPort) Receive(now fc.Time, f *fc.Frame) {
	s := p.sw
	switch {
	case !p.up:
		return
	case f.EOF.Invalid(): // [FCFS-2.2-3]
		s.stats.BadEOF++
		return
	case f.SOF.Class() == fc.ClassF || f.Type == fc.TypeSWILS:
		s.state.receive(now, p, f)
		return
	case p.isl:
		s.forward(now, p, f)
		return
	}
	if f.DID == fc.AddrFPort {
		p.receiveFPort(now, f)
		return
	}
	// A port may send only from addresses it was assigned.
	if p.logins[f.SID] == nil {
		s.stats.Spoofed++
		return
	}
	s.forward(now, p, f)
}

// forward sends f towards its destination. from is the port where f arrived, or nil for frames of
// the switch itself.
func (s *Switch) forward(now fc.Time, from *SwitchPort, f *fc.Frame) {
	if f.DID == fc.AddrBroadcast {
		s.broadcast(now, from, f)
		return
	}
	if f.DID.WellKnown() {
		if from != nil && !from.isl {
			s.service(now, from, f)
			return
		}
		s.stats.NoRoute++
		return
	}
	var to *SwitchPort
	if f.DID.Domain() == s.cfg.Domain {
		if p := s.ports[f.DID.Area()]; p != nil && p.logins[f.DID] != nil {
			to = p
		}
	} else {
		to = s.state.route(f.DID.Domain())
	}
	if to == nil || to == from && from.isl {
		s.refuse(from, f)
		return
	}
	s.stats.Forwarded++
	to.out.Send(f)
}

// refuse handles an undeliverable frame: a class 2 frame is answered by F_RJT, any other frame
// dropped.
func (s *Switch) refuse(from *SwitchPort, f *fc.Frame) {
	if f.SOF.Class() != fc.Class2 || from == nil || f.RCtl.IsLinkControl() {
		s.stats.NoRoute++
		return
	}
	s.stats.Rejected++
	s.tx = fc.Frame{SOF: fc.SOFn2, EOF: fc.EOFt, Header: fc.Header{
		RCtl: fc.RCtlFRJT, DID: f.SID, SID: f.DID, Type: f.Type, SeqID: f.SeqID, SeqCnt: f.SeqCnt,
		OXID: f.OXID, RXID: f.RXID, Param: 1<<24 | fc.RejectUnavailable<<16,
		FCtl: ^f.FCtl&fc.FCtlExchResponder | fc.FCtlSeqRecipient | f.FCtl&(fc.FCtlFirstSeq|fc.FCtlLastSeq|fc.FCtlEndSeq)}}
	from.out.Send(&s.tx)
}

// broadcast sends f to all N_Ports except the sender, and to other switches.
func (s *Switch) broadcast(now fc.Time, from *SwitchPort, f *fc.Frame) {
	if from != nil && from.isl && from != s.state.route(f.SID.Domain()) {
		return // a copy of f arrives on the shortest path too
	}
	s.stats.Broadcasts++
	for _, p := range s.ports {
		if p != nil && p.up && p != from && len(p.logins) > 0 {
			p.out.Send(f)
		}
	}
	for _, p := range s.isls {
		if p.up && p != from {
			p.out.Send(f)
		}
	}
}

// reply sets s.tx to the header of an answer to f and returns s.tx.
func (s *Switch) reply(f *fc.Frame, rctl fc.RCtl, t fc.Type) *fc.Frame {
	s.tx = fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Header: fc.Header{
		RCtl: rctl, DID: f.SID, SID: f.DID, Type: t, SeqID: f.SeqID, OXID: f.OXID, RXID: f.RXID,
		FCtl: fc.FCtlExchResponder | fc.FCtlLastSeq | fc.FCtlEndSeq}}
	return &s.tx
}

func (p *SwitchPort) accept(f *fc.Frame, payload []byte) {
	tx := p.sw.reply(f, fc.RCtlELSReply, fc.TypeELS)
	tx.Payload = payload
	p.out.Send(tx)
}

func (p *SwitchPort) reject(f *fc.Frame, reason, explanation uint8) {
	p.accept(f, fc.LSRjt{Reason: reason, Explanation: explanation}.Append(nil))
}

// receiveFPort answers link services addressed to the F_Port.
func (p *SwitchPort) receiveFPort(now fc.Time, f *fc.Frame) {
	s := p.sw
	if f.Type != fc.TypeELS || f.RCtl != fc.RCtlELSReq || !f.Last() {
		s.stats.Malformed++
		return
	}
	switch fc.CmdOf(f.Payload) {
	case fc.ELSFLOGI:
		p.flogi(now, f)
	case fc.ELSLOGO:
		p.accept(f, fc.AppendCmd(nil, fc.ELSAcc))
		if p.logins[f.SID] != nil {
			s.logout(now, p, f.SID)
		}
	case fc.ELSRTV:
		p.accept(f, fc.RTVAcc{RATOV: uint32(s.cfg.RATOV.Milliseconds()), EDTOV: uint32(s.cfg.EDTOV.Milliseconds())}.Append(nil))
	case fc.ELSECHO:
		p.accept(f, append(fc.AppendCmd(nil, fc.ELSAcc), f.Payload[4:]...))
	case fc.ELSLKA, fc.ELSRRQ:
		p.accept(f, fc.AppendCmd(nil, fc.ELSAcc))
	case 0:
		s.stats.Malformed++
	default:
		p.reject(f, fc.RjtNotSupported, fc.ExplUnsupported)
	}
}

// flogi assigns an address to an N_Port: the domain, the area of the port, and on a loop the AL_PA.
// The LS_ACC has the address as its D_ID. [FCFS-2.7-3]
func (p *SwitchPort) flogi(now fc.Time, f *fc.Frame) {
	s := p.sw
	l, _, err := fc.ParseLogin(f.Payload)
	if err != nil || l.PortName == 0 || f.SID.ALPA() != 0 && !p.loop || p.area == 0 {
		s.stats.Malformed++
		p.reject(f, fc.RjtProtocol, fc.ExplNone)
		return
	}
	id := fc.DomainAddr(s.cfg.Domain, p.area, f.SID.ALPA())
	old := p.logins[id]
	again := old != nil && old.port == l.PortName && old.ox == f.OXID // a copy of the same frame
	if old != nil && !again {
		if s.dir.remove(id) { // the port will register again
			s.state.withdraw(now, id)
		}
		if old.port != l.PortName {
			s.changed(now, id, fc.RSCNPort)
		}
	}
	if !p.loop {
		for other := range p.logins {
			if other != id {
				s.logout(now, p, other)
			}
		}
	}
	if !again {
		s.moved(now, p, l.PortName) // [FCFS-3.2-6]
		p.logins[id] = &login{port: l.PortName, node: l.NodeName, ox: f.OXID}
		s.stats.Logins++
	}
	acc := fc.Login{
		Cmd: fc.ELSAcc, VersionHigh: 0x20, VersionLow: 0x20, BBCredit: DefaultCredit,
		Features: fc.FeatFPort | fc.FeatBroadcast, RxSize: fc.MaxData,
		Word3: uint32(s.cfg.RATOV.Milliseconds()), EDTOV: uint32(s.cfg.EDTOV.Milliseconds()),
		PortName: p.name(), NodeName: s.cfg.FabricName,
	}
	for _, c := range []int{1, 2} { // indexes of classes 2 and 3
		if l.Class[c].Options&fc.ClassValid != 0 {
			acc.Class[c] = fc.ClassParams{Options: fc.ClassValid, RxSize: fc.MaxData}
			if l.Class[c].Options&fc.ClassInOrder != 0 && !s.cfg.OutOfOrder {
				acc.Class[c].Options |= fc.ClassInOrder // [FCFS-2.9-5]
			}
		}
	}
	tx := s.reply(f, fc.RCtlELSReply, fc.TypeELS)
	tx.DID = id
	s.buf = acc.Append(s.buf[:0])
	tx.Payload = s.buf
	p.out.Send(tx)
}

// moved ends the logins of name at ports other than p. A member that returns over a new link may
// log in before the end of the former link was detected. The directory must not name the former
// address then. [FCFS-3.2-6]
func (s *Switch) moved(now fc.Time, p *SwitchPort, name fc.WWN) {
	for _, q := range s.ports {
		if q == nil || q == p {
			continue
		}
		for id, l := range q.logins {
			if l.port == name {
				s.logout(now, q, id)
			}
		}
	}
}

// fan announces to the ports of a loop, after an initialisation, that the fabric is unchanged.
// [FCVI 7.7.4]
func (p *SwitchPort) fan(now fc.Time) {
	s := p.sw
	payload := fc.FAN{LoopFabric: fc.DomainAddr(s.cfg.Domain, p.area, 0), PortName: p.name(), FabricName: s.cfg.FabricName}.Append(nil)
	for id := range p.logins {
		tx := s.request(id, fc.AddrFPort, payload)
		tx.FCtl = fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq
		p.out.Send(tx)
	}
}

// request sets s.tx to a link service request of the switch and returns s.tx.
func (s *Switch) request(to, from fc.Addr, payload []byte) *fc.Frame {
	s.ox++
	if s.ox == fc.Unassigned {
		s.ox = 1
	}
	s.tx = fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: payload, Header: fc.Header{
		RCtl: fc.RCtlELSReq, DID: to, SID: from, Type: fc.TypeELS, SeqID: uint8(s.ox), OXID: s.ox, RXID: fc.Unassigned,
		FCtl: fc.FCtlFirstSeq | fc.FCtlEndSeq | fc.FCtlSeqInit}}
	return &s.tx
}

// changed reports a change of id to every local port that has requested change reports, except id
// itself.
func (s *Switch) changed(now fc.Time, id fc.Addr, format uint8) {
	payload := fc.AppendRSCN(nil, fc.RSCNPage{Qualifier: format, ID: id})
	for _, p := range s.ports {
		if p == nil || !p.up {
			continue
		}
		for to, l := range p.logins {
			if l.scr && to != id {
				s.stats.RSCNs++
				p.out.Send(s.request(to, fc.AddrFabricController, payload))
			}
		}
	}
}

// service answers a frame for a well-known address: the directory server and
// the fabric controller.
func (s *Switch) service(now fc.Time, p *SwitchPort, f *fc.Frame) {
	l := p.logins[f.SID]
	switch {
	case f.RCtl == fc.RCtlELSReply || f.RCtl == fc.RCtlBAAcc || f.RCtl == fc.RCtlBARjt || f.RCtl.IsLinkControl():
		return // f answers a request of this switch
	case !f.SOF.First() || !f.Last():
		s.stats.Malformed++
		return
	case f.Type == fc.TypeCT && f.DID == fc.AddrDirectory:
		if !l.dirLogin { // [FCFS-2.11-3]
			s.stats.RequestsBad++
			p.out.Send(s.request(f.SID, f.DID, fc.LOGO{ID: f.DID, PortName: s.cfg.Name}.Append(nil)))
			return
		}
		s.directoryRequest(now, p, f)
		return
	case f.Type != fc.TypeELS || f.RCtl != fc.RCtlELSReq:
		s.stats.Malformed++
		return
	}
	switch cmd := fc.CmdOf(f.Payload); {
	case cmd == fc.ELSPLOGI && f.DID == fc.AddrDirectory, cmd == fc.ELSPLOGI && f.DID == fc.AddrFabricController:
		q, _, err := fc.ParseLogin(f.Payload)
		if err != nil {
			s.stats.Malformed++
			p.reject(f, fc.RjtProtocol, fc.ExplNone)
			return
		}
		if f.DID == fc.AddrDirectory {
			l.dirLogin = true
		}
		acc := fc.Login{Cmd: fc.ELSAcc, VersionHigh: 0x20, VersionLow: 0x20, BBCredit: DefaultCredit,
			RxSize:   fc.MaxData,
			Features: q.Features & fc.FeatCISeqCnt, Word3: 255<<16 | 1, EDTOV: uint32(s.cfg.EDTOV.Milliseconds()),
			PortName: s.cfg.Name, NodeName: s.cfg.Name}
		acc.Class[2] = fc.ClassParams{Options: fc.ClassValid, RxSize: fc.MaxData, Concurrent: 255, OpenSeqs: 1}
		s.buf = acc.Append(s.buf[:0])
		p.accept(f, s.buf)
	case cmd == fc.ELSLOGO:
		if f.DID == fc.AddrDirectory {
			l.dirLogin = false
		}
		p.accept(f, fc.AppendCmd(nil, fc.ELSAcc))
	case cmd == fc.ELSSCR && f.DID == fc.AddrFabricController:
		q, _, err := fc.ParseSCR(f.Payload)
		if err != nil {
			s.stats.Malformed++
			p.reject(f, fc.RjtProtocol, fc.ExplNone)
			return
		}
		l.scr = q.Function != fc.SCRClear
		p.accept(f, fc.AppendCmd(nil, fc.ELSAcc))
	case cmd == fc.ELSRTV:
		p.accept(f, fc.RTVAcc{RATOV: uint32(s.cfg.RATOV.Milliseconds()), EDTOV: uint32(s.cfg.EDTOV.Milliseconds())}.Append(nil))
	case cmd == fc.ELSECHO:
		p.accept(f, append(fc.AppendCmd(nil, fc.ELSAcc), f.Payload[4:]...))
	case cmd == 0:
		s.stats.Malformed++
	default:
		p.reject(f, fc.RjtNotSupported, fc.ExplUnsupported)
	}
}

// maxCTFrames is the maximum number of frames of a directory answer.
const maxCTFrames = 32

// directoryRequest answers a request to the name server.
func (s *Switch) directoryRequest(now fc.Time, p *SwitchPort, f *fc.Frame) {
	s.stats.Requests++
	answer, changed := s.dir.request(f.SID, f.Payload, s.state.reachable)
	if h, _, err := fc.ParseCT(answer); err != nil || h.Cmd != fc.CTAccept {
		s.stats.RequestsBad++
	}
	if len(answer) == 0 {
		s.stats.Malformed++
		return
	}
	const chunk = fc.MaxData
	if len(answer) > maxCTFrames*chunk {
		answer = answer[:maxCTFrames*chunk]
		answer[len(answer)-4] |= 0x80 // marks the last entry of the truncated list
	}
	cnt := uint16(0)
	for first := true; len(answer) > 0 || first; first = false {
		n := min(len(answer), chunk)
		tx := s.reply(f, fc.RCtlSolControl, fc.TypeCT)
		tx.Payload = answer[:n]
		tx.SeqCnt = cnt
		answer = answer[n:]
		if !first {
			tx.SOF = fc.SOFn3
		}
		if len(answer) > 0 {
			tx.EOF = fc.EOFn
			tx.FCtl = fc.FCtlExchResponder
		}
		cnt++
		p.out.Send(tx)
	}
	if changed != 0 {
		s.state.announce(now, changed)
		s.changed(now, changed, fc.RSCNPort)
	}
}

// Lookup returns the Sender for forwarding a frame from p. The result is nil if the frame is for
// the switch itself, for several ports or for none, or if the frame's S_ID does not belong to p.
// Except for a counter Lookup does not change the switch.
func (p *SwitchPort) Lookup(f *fc.Frame) fc.Sender {
	s := p.sw
	if !p.up || f.EOF.Invalid() || f.DID.WellKnown() || f.SOF.Class() == fc.ClassF || f.Type == fc.TypeSWILS {
		return nil
	}
	if !p.isl && p.logins[f.SID] == nil {
		return nil
	}
	out := p.Route(f.DID)
	if out != nil {
		s.stats.Forwarded++
	}
	return out
}

// Route returns the Sender for frames to an N_Port outside p, or nil if there is none.
func (p *SwitchPort) Route(dst fc.Addr) fc.Sender {
	s := p.sw
	var to *SwitchPort
	if dst.Domain() == s.cfg.Domain {
		if q := s.ports[dst.Area()]; q != nil && q.logins[dst] != nil {
			to = q
		}
	} else {
		to = s.state.route(dst.Domain())
	}
	if to == nil || to == p {
		return nil
	}
	return to.out
}
