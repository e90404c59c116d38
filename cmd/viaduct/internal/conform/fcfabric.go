package conform

import (
	"net"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
)

// Addresses in the fabric the cases emulate.
const (
	fabricPeer  fc.Addr = 0x010100 // the address that we assign to the peer
	fabricOther fc.Addr = 0x010200 // an N_Port without FC-VI
	fabricOwn   fc.Addr = 0x010300 // our N_Port
)

// A fabric is our end of a link opened by the peer. It emulates a switch with services, and our
// N_Port.
type fabric struct {
	*fcEnd
	name fc.WWN // name of the emulated switch

	ratov    time.Duration // R_A_TOV that the switch announces; 0 means the default
	other    bool          // the directory names the port without FC-VI before ours
	misnamed bool          // the directory has a name for our port that differs from the one in its login

	peer       fc.Login // latest FLOGI of the peer
	online     bool     // FLOGI was received
	directory  bool     // the peer is logged in to the directory
	registered map[fc.CTCmd]bool
	asked      [16]byte // the host address that the peer looks up
	found      bool     // the peer is logged in to our port
	left       bool     // the peer has ended its login to our port
	aborted    map[uint16]bool
}

// linkedBy accepts connections of a peer until a connection becomes a link. The peer uses the first
// connection only to ask for the name of the switch.
func (t *T) linkedBy() *fabric {
	own := t.special(0)
	s := &fabric{name: own.Source, registered: map[fc.CTCmd]bool{}, aborted: map[uint16]bool{}}
	c := t.connect()
	q := t.specialOf(c)
	for range 2 {
		if q.Destination == s.name {
			t.write(c, q.Append(nil))
			s.fcEnd = &fcEnd{t: t, c: c, name: fc.PortName(own.Entity, 1), id: fabricOwn,
				seq: map[fc.Addr]uint8{}, mtu: fc.MinRxSize, ox: fc.ServiceOXID, sw: s}
			return s
		}
		nonce := q.Nonce
		q.Changed, q.Destination = true, s.name
		t.write(c, q.Append(nil))
		t.gone(c, "FCFS-2.4-3", "to a changed echo")
		c = t.connectAgain()
		q = t.specialOf(c)
		t.check(q.Nonce != nonce, "FCFS-2.4-7", "the nonce of two links is %#x", nonce)
	}
	t.fail("FCFS-2.4-3", "the peer has reached %v, and asks for %v", s.name, q.Destination)
	return nil
}

// specialOf reads the special frame of an initiator.
func (t *T) specialOf(c net.Conn) fcip.Special {
	b := make([]byte, fcip.SpecialLen)
	n, e := t.read(c, b, t.g.Patience)
	t.check(e == whole, "FCFS-2.4-1", "%d bytes of a special frame, then %v", n, e)
	s, _, err := fcip.ParseSpecial(b)
	t.check(err == nil, "FCFS-2.4-1", "%v", err)
	t.check(!s.Changed && s.Source != 0, "FCFS-2.4-1",
		"in the special frame of an initiator Ch is %v and the source %v", s.Changed, s.Source)
	return s
}

// take answers f as the fabric, or as the login service of our N_Port, and returns true. For the
// other frames to our N_Port, take returns false. A repeated request is answered again.
func (s *fabric) take(f *fc.Frame) bool {
	t := s.t
	cmd := fc.ELSCmd(0)
	if f.RCtl == fc.RCtlELSReq {
		cmd = fc.CmdOf(f.Payload)
	}
	if cmd != 0 || f.Type == fc.TypeCT {
		t.check(f.SOF == fc.SOFi3 && f.EOF == fc.EOFt, "FCFS-2.2-2",
			"a sequence of one frame is delimited by %v and %v", f.SOF, f.EOF)
		t.check(f.OXID >= fc.ServiceOXID && f.OXID != fc.Unassigned, "FCVI-5.4-1",
			"OX_ID of a request to a service is %#04x", f.OXID)
		t.check(f.RXID == fc.Unassigned, "FCVI-5.2.1-9", "RX_ID of a request is %#04x", f.RXID)
		if cmd != fc.ELSFARPReq {
			t.check(f.FCtl&^fc.FCtlFill == fc.FCtlFirstSeq|fc.FCtlEndSeq|fc.FCtlSeqInit,
				"FCFS-2.10-2", "F_CTL of a request is %06x", uint32(f.FCtl))
		}
	}
	if cmd == fc.ELSFLOGI {
		s.flogi(f)
		return true
	}
	t.check(s.online, "FCFS-2.7-3", "a frame for %v comes before FLOGI", f.DID)
	t.check(f.SID == fabricPeer, "FCVI-5.8-2", "S_ID is %v, given was %v", f.SID, fabricPeer)
	switch {
	case f.DID == fabricOwn:
		return s.port(f, cmd)
	case f.DID == fc.AddrDirectory && cmd == fc.ELSPLOGI:
		s.parse(f)
		s.directory = true
		s.accept(f, fabricPeer, 0)
	case f.DID == fc.AddrDirectory && f.Type == fc.TypeCT:
		s.lookUp(f)
	case f.DID == fc.AddrFabricController && cmd == fc.ELSSCR:
		t.check(len(f.Payload) == fc.SCRLen, "FCFS-2.7-5", "an SCR of %d bytes", len(f.Payload))
		s.acknowledge(f)
	case f.DID == fabricOther && cmd == fc.ELSPLOGI:
		t.fail("FCVI-7.6-4", "the peer logs in to a port without FC-VI")
	case cmd != 0 && f.DID != fc.AddrBroadcast:
		s.fcEnd.reply(f, fc.RCtlELSReply, fc.LSRjt{Reason: fc.RjtNotSupported}.Append(nil))
	}
	return true
}

func (s *fabric) acknowledge(f *fc.Frame) {
	s.fcEnd.reply(f, fc.RCtlELSReply, fc.AppendCmd(nil, fc.ELSAcc))
}

// port answers a login, a logout or an ABTS to our N_Port, and returns true. For other frames, port
// returns false.
func (s *fabric) port(f *fc.Frame, cmd fc.ELSCmd) bool {
	t := s.t
	switch {
	case cmd == fc.ELSPLOGI:
		l := s.parse(f)
		s.mtu = min(fc.MaxData, int(l.RxSize))
		if n := int(l.Class[2].RxSize); n >= fc.MinRxSize {
			s.mtu = min(s.mtu, n)
		}
		s.found = true
		s.accept(f, fabricPeer, 0)
	case cmd == fc.ELSLOGO:
		l, _, err := fc.ParseLOGO(f.Payload)
		t.check(err == nil && len(f.Payload) == fc.LOGOLen, "FCFS-2.7-5", "a LOGO of %d bytes", len(f.Payload))
		t.check(l.ID == fabricPeer && l.PortName == s.peer.PortName, "FCFS-2.7-5",
			"a LOGO of %v names %v, %v", fabricPeer, l.ID, l.PortName)
		s.left = true
		s.acknowledge(f)
		return !s.misnamed // unless misnamed, the case still waits for a login
	case f.RCtl == fc.RCtlABTS:
		s.aborted[f.OXID] = true
		s.fcEnd.reply(f, fc.RCtlBAAcc, fc.BAAcc{OXID: f.OXID, RXID: f.RXID, HighCnt: 0xffff}.Append(nil))
	default:
		return false
	}
	return true
}

// parse reads the payload of FLOGI or PLOGI and checks the rules for both.
func (s *fabric) parse(f *fc.Frame) fc.Login {
	t := s.t
	t.check(len(f.Payload) == fc.LoginLen, "FCFS-2.7-1", "a %v of %d bytes", fc.CmdOf(f.Payload), len(f.Payload))
	l, _, err := fc.ParseLogin(f.Payload)
	t.check(err == nil, "FCFS-2.7-2", "%v", err)
	t.check(l.PortName>>60 != 0 && l.NodeName>>60 != 0, "FCFS-2.6-1", "the names are %v and %v", l.PortName, l.NodeName)
	t.check(l.Class[2].Options&fc.ClassValid != 0, "FCFS-2.7-1", "class 3 is not valid in a %v", l.Cmd)
	t.check(!s.online || l.PortName == s.peer.PortName, "FCFS-2.7-1", "the Port_Name is %v, in FLOGI it was %v",
		l.PortName, s.peer.PortName)
	return l
}

func (s *fabric) flogi(f *fc.Frame) {
	t := s.t
	t.check(f.DID == fc.AddrFPort, "FCFS-2.7-3", "FLOGI goes to %v", f.DID)
	t.check(f.SID == 0 || f.SID == fabricPeer, "FCFS-2.7-3", "FLOGI comes from %v", f.SID)
	s.peer, s.online = s.parse(f), true
	s.accept(f, fabricPeer, fc.FeatFPort)
}

// accept answers FLOGI or PLOGI by an LS_ACC to the address to.
func (s *fabric) accept(f *fc.Frame, to fc.Addr, features uint16) {
	l := fc.Login{Cmd: fc.ELSAcc, VersionHigh: 0x20, VersionLow: 0x20, BBCredit: 16,
		Features: features, RxSize: fcRxSize, PortName: s.fcEnd.name, NodeName: s.node()}
	class := fc.ClassParams{Options: fc.ClassValid, RxSize: fcRxSize, Concurrent: 255, OpenSeqs: 1}
	switch {
	case features == fc.FeatFPort:
		class.Options |= fc.ClassInOrder
		l.PortName, l.NodeName = s.name, s.name
		l.Word3, l.EDTOV = uint32(fc.DefaultRATOV/time.Millisecond), uint32(fc.DefaultEDTOV/time.Millisecond)
		if s.ratov != 0 {
			l.Word3 = uint32(s.ratov / time.Millisecond)
		}
	case f.DID.WellKnown():
		l.PortName, l.NodeName = s.name, s.name
		fallthrough
	default:
		l.Features |= fc.FeatCIRO | fc.FeatRandomRO | fc.FeatCISeqCnt
		l.Word3 = 255<<16 | 0xff
	}
	l.Class[2] = class
	q := *f
	q.SID = to
	s.fcEnd.reply(&q, fc.RCtlELSReply, l.Append(nil))
}

// lookUp answers a request to the directory. A request with another command is rejected.
func (s *fabric) lookUp(f *fc.Frame) {
	t := s.t
	t.check(s.directory, "FCFS-2.11-3", "a request to the directory comes before the login to it")
	h, n, err := fc.ParseCT(f.Payload)
	t.check(err == nil && h.Revision == fc.CTRevision && h.GSType == fc.GSTypeDirSvc &&
		h.GSSubtype == fc.GSSubtypeNames && f.RCtl == fc.RCtlUnsolControl, "FCFS-2.11-1",
		"Common Transport header % x, R_CTL %v", f.Payload[:min(len(f.Payload), fc.CTLen)], f.RCtl)
	q := f.Payload[n:]
	least := map[fc.CTCmd]int{fc.NSRPNID: 12, fc.NSRNNID: 12, fc.NSRFTID: 36, fc.NSRFFID: 8,
		fc.NSGIDIPP: 16, fc.NSGFTID: 4, fc.NSGPNID: 4, fc.NSGIDPN: 8}
	t.check(len(q) >= least[h.Cmd], "FCFS-2.11-1", "%v with a body of %d bytes", h.Cmd, len(q))
	name := s.fcEnd.name
	if s.misnamed {
		name++
	}
	var a []byte
	switch h.Cmd {
	case fc.NSRPNID, fc.NSRNNID, fc.NSRFTID, fc.NSRFFID, fc.NSRIPPID:
		t.check(len(q) >= 4 && fc.GetAddr(q[1:]) == fabricPeer, "FCVI-7.6-2",
			"%v registers % x, given was %v", h.Cmd, q[:min(4, len(q))], fabricPeer)
		s.registers(h.Cmd, q[4:])
	case fc.NSRIPNN:
	case fc.NSGIDIPP:
		s.asked = [16]byte(q)
		if s.other {
			a = fc.NSBody{}.ID(fabricOther)
		}
		a = fc.NSBody(a).ID(fabricOwn)
		a[len(a)-4] = 0x80
	case fc.NSGIDPN:
		a = fc.NSBody{}.ID(fabricOwn)
	case fc.NSGFTID:
		types := fc.FC4Map{}
		types.Set(fc.TypeIP)
		if fc.GetAddr(q[1:]) == fabricOwn {
			types.Set(fc.TypeFCVI)
		}
		a = types[:]
	case fc.NSGPNID:
		if fc.GetAddr(q[1:]) != fabricOwn {
			name += 2
		}
		a = fc.NSBody{}.Name(name)
	default:
		h.Cmd, h.Reason = fc.CTReject, fc.CTRsnUnsupported
	}
	if h.Cmd != fc.CTReject {
		h.Cmd = fc.CTAccept
	}
	s.fcEnd.reply(f, fc.RCtlSolControl, append(h.Append(nil), a...))
}

// registers checks the peer's registrations with the directory.
func (s *fabric) registers(cmd fc.CTCmd, b []byte) {
	t := s.t
	s.registered[cmd] = true
	switch cmd {
	case fc.NSRPNID:
		t.check(string(b[:8]) == string(fc.NSBody{}.Name(s.peer.PortName)), "FCVI-7.6-2",
			"the Port_Name registered is %x, in FLOGI it was %v", b[:8], s.peer.PortName)
	case fc.NSRNNID:
		t.check(string(b[:8]) == string(fc.NSBody{}.Name(s.peer.NodeName)), "FCVI-7.6-2",
			"the Node_Name registered is %x, in FLOGI it was %v", b[:8], s.peer.NodeName)
	case fc.NSRFTID:
		types := fc.FC4Map(b[:32])
		t.check(types.Has(fc.TypeFCVI), "FCVI-7.6-1", "FC-VI is not among the types %x", b[:32])
	}
}

// known reports whether the peer has made all registrations required of a port without an IP
// address.
func (s *fabric) known() bool {
	return s.registered[fc.NSRPNID] && s.registered[fc.NSRNNID] && s.registered[fc.NSRFTID] && s.registered[fc.NSRFFID]
}
