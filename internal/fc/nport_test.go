package fc

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// A lab is an N_Port without a link: the lab records the sent frames, and the test delivers frames
// by receive. The lab is also the port's FC-4.
type lab struct {
	t *testing.T
	*NPort
	now     Time
	sent    []Frame
	online  int
	out     []Addr // ports reported as logged out
	resumed []Addr
	failed  []uint8
}

func (l *lab) Send(f *Frame) {
	c := *f
	c.Payload = bytes.Clone(f.Payload)
	l.sent = append(l.sent, c)
}

func (l *lab) PortOnline(Time)                                  { l.online++ }
func (l *lab) Frame(Time, *Remote, *Frame)                      {}
func (l *lab) LoggedOut(_ Time, r *Remote)                      { l.out = append(l.out, r.Addr) }
func (l *lab) Resumed(_ Time, r *Remote)                        { l.resumed = append(l.resumed, r.Addr) }
func (l *lab) Acked(Time, *Remote, *Frame)                      {}
func (l *lab) Failed(_ Time, _ *Remote, _ *Frame, reason uint8) { l.failed = append(l.failed, reason) }

// The names of the port, of the peer, and of the fabric. The peer's name is lower than the port's.
const (
	ownPort, ownNode   = WWN(0x2001_0200_0000_0005), WWN(0x1000_0200_0000_0005)
	peerPort, peerNode = WWN(0x2001_0200_0000_0003), WWN(0x1000_0200_0000_0003)
	fPort, fName       = WWN(0x1001_0200_0000_1000), WWN(0x1000_0200_0000_1000)

	ownID, peerID = Addr(0x010100), Addr(0x010200)
)

func newLab(t *testing.T, change func(*PortConfig)) *lab {
	cfg := PortConfig{PortName: ownPort, NodeName: ownNode,
		IPs: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")}}
	if change != nil {
		change(&cfg)
	}
	l := &lab{t: t}
	l.NPort = NewNPort(cfg, l)
	l.Register(TypeFCVI, labUpper{l})
	return l
}

// A labUpper is a lab as an Upper. It adds the method Abort, because the Abort of the embedded
// NPort has another signature.
type labUpper struct{ *lab }

func (labUpper) Abort(Time, *Remote, *Frame) bool { return false }

func (l *lab) take() []Frame {
	out := l.sent
	l.sent = nil
	return out
}

// one returns the only sent frame, and fails the test if there are none or several.
func (l *lab) one() Frame {
	l.t.Helper()
	sent := l.take()
	if len(sent) != 1 {
		l.t.Fatalf("%d frames were sent, want one: %v", len(sent), sent)
	}
	return sent[0]
}

// silent fails the test if a frame was sent.
func (l *lab) silent(what string) {
	l.t.Helper()
	if sent := l.take(); len(sent) != 0 {
		l.t.Errorf("%s: sent %v", what, sent)
	}
}

// wait advances the time by d and runs the expired timers.
func (l *lab) wait(d time.Duration) {
	for end := l.now + d; ; {
		at := l.Deadline()
		if at > end {
			l.now = end
			return
		}
		l.now = max(l.now, at)
		l.Tick(l.now)
	}
}

// receive delivers a request of another port.
func (l *lab) receive(from, to Addr, payload []byte, ox uint16) {
	l.Receive(l.now, &Frame{SOF: SOFi3, EOF: EOFt, Payload: payload, Header: Header{
		RCtl: RCtlELSReq, DID: to, SID: from, Type: TypeELS, FCtl: FCtlFirstSeq | FCtlEndSeq | FCtlSeqInit,
		OXID: ox, RXID: Unassigned}})
}

// answer delivers the answer to a request of this port.
func (l *lab) answer(f Frame, payload []byte) { l.answerTo(f, f.SID, payload) }

func (l *lab) answerTo(f Frame, to Addr, payload []byte) {
	rctl := RCtlELSReply
	if f.Type == TypeCT {
		rctl = RCtlSolControl
	}
	l.Receive(l.now, &Frame{SOF: SOFi3, EOF: EOFt, Payload: payload, Header: Header{
		RCtl: rctl, DID: to, SID: f.DID, Type: f.Type, FCtl: FCtlExchResponder | FCtlLastSeq | FCtlEndSeq,
		SeqID: f.SeqID, OXID: f.OXID, RXID: f.RXID}})
}

var (
	accCT   = CTHeader{Revision: 1, GSType: 0xFC, GSSubtype: 2, Cmd: 0x8002}.Append(nil)
	rjtCT   = CTHeader{Revision: 1, GSType: 0xFC, GSSubtype: 2, Cmd: 0x8001, Reason: 9, Explanation: 1}.Append(nil)
	accELS  = []byte{0x02, 0, 0, 0}
	rjtELS  = LSRjt{Reason: 0x09}.Append(nil)
	noReply = []byte(nil)
)

// login returns the service parameters of another port.
func login(cmd ELSCmd, port, node WWN, features uint16) []byte {
	l := Login{Cmd: cmd, VersionHigh: 0x20, VersionLow: 0x20, Features: features, RxSize: 2112,
		PortName: port, NodeName: node}
	l.Class[1] = ClassParams{Options: 0x8000, RxSize: 2112, EECredit: 3}
	l.Class[2] = ClassParams{Options: 0x8800, RxSize: 2112}
	return l.Append(nil)
}

// serve answers FLOGI, and requests to the fabric's services, until the port sends no more frames.
// It returns all other frames.
func (l *lab) serve(id Addr, port, name WWN) (rest []Frame) {
	l.t.Helper()
	for range 100 {
		sent := l.take()
		if len(sent) == 0 {
			return rest
		}
		for _, f := range sent {
			switch {
			case f.Type == TypeELS && CmdOf(f.Payload) == ELSFLOGI:
				l.answerTo(f, id, login(0x02, port, name, 0x1000))
			case f.Type == TypeELS && f.RCtl == RCtlELSReq && f.DID.WellKnown() && CmdOf(f.Payload) == ELSPLOGI:
				l.answer(f, login(0x02, 1, 1, 0))
			case f.Type == TypeCT:
				l.answer(f, accCT)
			case f.RCtl == RCtlELSReq && f.DID.WellKnown():
				l.answer(f, accELS)
			default:
				rest = append(rest, f)
			}
		}
	}
	l.t.Fatal("the port goes on sending")
	return nil
}

// onFabric returns a port online at a fabric and logged in with a peer.
func onFabric(t *testing.T, loop bool, change func(*PortConfig)) (*lab, *Remote) {
	t.Helper()
	l := newLab(t, change)
	id, info := ownID, LinkInfo{}
	if loop {
		id, info = ownID|0xEF, LinkInfo{Loop: true, FLPort: true, ALPA: 0xEF}
	}
	l.LinkUp(l.now, info)
	l.serve(id, fPort, fName)
	if l.State() != Online || !l.HasDirectory() || l.ID() != id {
		t.Fatalf("%v, directory %v, id %v", l.State(), l.HasDirectory(), l.ID())
	}
	return l, l.loginPeer(peerID)
}

// loginPeer logs the port in with the peer.
func (l *lab) loginPeer(at Addr) (r *Remote) {
	l.t.Helper()
	l.Login(l.now, at, func(_ Time, got *Remote, err error) { r = got })
	l.answer(l.one(), login(0x02, peerPort, peerNode, 0))
	if r == nil || !r.Ready() || r.PortName != peerPort {
		l.t.Fatalf("no login: %+v", r)
	}
	l.resumed, l.out = nil, nil
	return r
}

// show describes frames of link services and of the directory by their command and addresses.
func show(frames []Frame) []string {
	var out []string
	for _, f := range frames {
		what := fmt.Sprint(f.RCtl)
		switch {
		case f.Type == TypeCT:
			h, _, _ := ParseCT(f.Payload)
			what = h.Cmd.String()
		case f.Type == TypeELS:
			what = fmt.Sprint(CmdOf(f.Payload))
		}
		out = append(out, fmt.Sprintf("%s %06x>%06x", what, uint32(f.SID), uint32(f.DID)))
	}
	return out
}

func (l *lab) expect(what string, frames []Frame, want ...string) {
	l.t.Helper()
	if got := show(frames); !slices.Equal(got, want) {
		l.t.Errorf("%s: sent %q, want %q", what, got, want)
	}
}

// TestRegistration checks the registrations of a port after FLOGI byte by byte, and its behaviour
// if the directory refuses or the link breaks. [FCVI-7.6-2]
func TestRegistration(t *testing.T) {
	all := []struct{ cmd, body string }{
		{"0212", "00 010100 2001020000000005"},
		{"0213", "00 010100 1000020000000005"},
		{"0217", "00 010100 00000000 00000000 01000000 0000000000000000000000000000000000000000"}, // type 0x58 is bit 24 of word 2
		{"021f", "00 010100 0000 00 58"},
		{"021b", "00 010100 000000000000000000000000 0a000005"},
		{"021b", "00 010100 000000000000000000000000 0a000006"},
		{"0235", "1000020000000005 000000000000000000000000 0a000005"},
	}
	start := func(ips int) *lab {
		l := newLab(t, func(c *PortConfig) { c.IPs = c.IPs[:ips] })
		l.LinkUp(0, LinkInfo{})
		l.answerTo(l.one(), ownID, login(0x02, fPort, fName, 0x1000))
		l.answer(l.one(), login(0x02, 1, 1, 0)) // the answer to the PLOGI with the directory
		return l
	}
	request := func(l *lab, i int, cmd, body string) Frame {
		t.Helper()
		f := l.one()
		want := testkit.Hex("01 000000 fc 02 00 00" + cmd + "0000 00 00 00 00" + body)
		if f.DID != 0xFFFFFC || f.SID != ownID || f.Type != TypeCT || !bytes.Equal(f.Payload, want) {
			t.Errorf("step %d: %v with %x, want %x", i, f.String(), f.Payload, want)
		}
		return f
	}
	scr := func(l *lab) { // answers the state change registration, which ends the registrations
		t.Helper()
		f := l.one()
		if f.DID != 0xFFFFFD || !bytes.Equal(f.Payload, testkit.Hex("62000000 000000 03")) {
			t.Errorf("after the registrations: %v with %x", f.String(), f.Payload)
		}
		l.answer(f, accELS)
	}
	t.Run("all", func(t *testing.T) {
		l := start(2)
		for i, s := range all {
			l.answer(request(l, i, s.cmd, s.body), accCT)
		}
		scr(l)
		if l.State() != Online || !l.HasDirectory() || l.online != 1 {
			t.Errorf("%v, directory %v, told %d times", l.State(), l.HasDirectory(), l.online)
		}
	})
	t.Run("without an IP address", func(t *testing.T) {
		l := start(0)
		for i, s := range all[:4] {
			l.answer(request(l, i, s.cmd, s.body), accCT)
		}
		scr(l)
		if l.State() != Online || !l.HasDirectory() {
			t.Errorf("%v, directory %v", l.State(), l.HasDirectory())
		}
	})
	t.Run("refused", func(t *testing.T) { // the port comes online without a directory
		l, _ := onFabric(t, false, nil)
		l.LinkUp(l.now, LinkInfo{})
		l.answerTo(l.one(), ownID, login(0x02, fPort, fName, 0x1000))
		l.answer(l.one(), login(0x02, 1, 1, 0))
		l.answer(request(l, 0, all[0].cmd, all[0].body), rjtCT)
		scr(l)
		if l.State() != Online || l.HasDirectory() {
			t.Errorf("%v, directory %v", l.State(), l.HasDirectory())
		}
	})
	t.Run("link lost", func(t *testing.T) {
		l := start(2)
		l.answer(request(l, 0, all[0].cmd, all[0].body), accCT)
		l.take()
		l.LinkDown(l.now)
		if l.State() != Offline || l.HasDirectory() || l.online != 0 {
			t.Errorf("%v, directory %v, told %d times", l.State(), l.HasDirectory(), l.online)
		}
	})
}

// TestPointToPoint: on a link without a fabric the port with the higher name sends PLOGI from
// address 1 to address 2, which assigns both addresses. The other port waits for the PLOGI.
// [FCFS-2.7-4]
func TestPointToPoint(t *testing.T) {
	const higher = ownPort + 1
	start := func(t *testing.T, other WWN) *lab {
		l := newLab(t, nil)
		l.LinkUp(0, LinkInfo{})
		f := l.one()
		l.answer(f, login(0x02, other, peerNode, 0))
		if l.Topology() != PointToPoint || !l.InOrder() || l.HasDirectory() || l.RATOV() != 2*l.EDTOV() {
			t.Errorf("%v, in order %v, directory %v, R_A_TOV %v", l.Topology(), l.InOrder(),
				l.HasDirectory(), l.RATOV())
		}
		return l
	}
	t.Run("higher", func(t *testing.T) {
		l := start(t, peerPort)
		if l.State() != Registering || l.ID() != 1 {
			t.Errorf("%v at %v", l.State(), l.ID())
		}
		f := l.one()
		l.expect("higher name", []Frame{f}, "PLOGI 000001>000002")
		l.answer(f, login(0x02, peerPort, peerNode, 0))
		if l.State() != Online || l.Remote(2) == nil {
			t.Errorf("%v", l.State())
		}
	})
	for _, other := range []WWN{higher, ownPort} { // an equal name means a loop-back plug, so no address is assigned
		t.Run(fmt.Sprint("not higher than ", other), func(t *testing.T) {
			l := start(t, other)
			l.wait(time.Minute)
			l.silent("lower name")
			if l.State() != LoggingIn || l.ID() != 0 {
				t.Errorf("%v at %v", l.State(), l.ID())
			}
			if other == ownPort {
				return
			}
			l.receive(1, 2, login(0x03, other, peerNode, 0), 9)
			f := l.one()
			if f.SID != 2 || f.DID != 1 || f.Payload[0] != 0x02 || l.State() != Online || l.ID() != 2 {
				t.Errorf("%v at %v, answered by %v", l.State(), l.ID(), f.String())
			}
		})
	}
	t.Run("refused", func(t *testing.T) { // the request is repeated E_D_TOV later
		l := start(t, peerPort)
		l.answer(l.one(), rjtELS)
		l.wait(l.EDTOV() - 1)
		l.silent("before E_D_TOV")
		l.wait(1)
		l.expect("after E_D_TOV", l.take(), "PLOGI 000001>000002")
	})
	t.Run("refused, then called", func(t *testing.T) { // the peer's PLOGI has arrived in the meantime
		l := start(t, peerPort)
		l.answer(l.one(), rjtELS)
		l.receive(2, 1, login(0x03, peerPort, peerNode, 0), 9)
		if l.take(); l.State() != Online {
			t.Error(l.State())
		}
		l.receive(2, 1, LOGO{ID: 2, PortName: peerPort}.Append(nil), 10)
		l.take()
		l.wait(2 * l.EDTOV())
		l.silent("online")
	})
	t.Run("refused, then the link again", func(t *testing.T) { // a link event ends the pause
		l := start(t, peerPort)
		l.answer(l.one(), rjtELS)
		l.LinkDown(l.now)
		l.LinkUp(l.now, LinkInfo{})
		l.answer(l.one(), login(0x02, peerPort, peerNode, 0))
		l.answer(l.one(), rjtELS)
		l.wait(l.EDTOV() / 2)
		l.LinkDown(l.now)
		l.LinkUp(l.now, LinkInfo{})
		l.answer(l.one(), login(0x02, peerPort, peerNode, 0))
		f := l.one()
		l.expect("new link", []Frame{f}, "PLOGI 000001>000002")
		l.answer(f, rjtELS)
		l.wait(l.EDTOV()/2 + 1)
		l.silent("the pause of the former link")
		l.wait(l.EDTOV()/2 - 1)
		l.expect("that of this one", l.take(), "PLOGI 000001>000002")
	})
	t.Run("link lost while asking", func(t *testing.T) {
		l := start(t, peerPort)
		l.take()
		l.LinkDown(l.now)
		if l.State() != Offline {
			t.Error(l.State())
		}
	})
	t.Run("asked first", func(t *testing.T) { // the peer's FLOGI names the peer, so this port's FLOGI needs no answer
		for _, other := range []WWN{peerPort, higher} {
			l := newLab(t, nil)
			l.LinkUp(0, LinkInfo{})
			l.take()
			l.receive(0, AddrFPort, login(0x04, other, peerNode, 0), 7)
			want := []string{"LS_ACC fffffe>000000"}
			if other == peerPort {
				want = append(want, "PLOGI 000001>000002")
			}
			sent := l.take()
			l.expect("FLOGI", sent, want...)
			if other == peerPort {
				l.answer(sent[1], login(0x02, peerPort, peerNode, 0))
			} else {
				l.receive(1, 2, login(0x03, other, peerNode, 0), 8)
				l.take()
			}
			if l.State() != Online {
				t.Fatal(l.State())
			}
			if len(l.exch) != 0 || l.Stats().Retries != 0 {
				t.Errorf("%d exchanges left", len(l.exch))
			}
			l.wait(time.Minute)
			l.silent("our FLOGI")
			// The peer restarts, but the port gets no link event.
			l.receive(0, AddrFPort, login(0x04, other, peerNode, 0), 9)
			l.expect("FLOGI again", l.take(), want...)
			if l.State() == Online || len(l.out) != 1 {
				t.Errorf("%v, logged out %v", l.State(), l.out)
			}
		}
	})
}

// TestPrivateLoop: after a LIP no data is sent to a port until ADISC has shown an unchanged port.
// If this port's own address has changed, every login ends by LOGO. [FCVI-7.7-3]
func TestPrivateLoop(t *testing.T) {
	info := LinkInfo{Loop: true, ALPA: 0x10}
	up := func(t *testing.T) (*lab, *Remote) {
		l := newLab(t, nil)
		l.LinkUp(0, info)
		l.silent("alone on the loop")
		if l.State() != Online || l.Topology() != PrivateLoop || l.ID() != 0x10 || !l.InOrder() || l.HasDirectory() {
			t.Errorf("%v on %v at %v, in order %v, directory %v", l.State(), l.Topology(), l.ID(),
				l.InOrder(), l.HasDirectory())
		}
		return l, l.loginPeer(0x20)
	}
	for _, c := range []struct {
		name   string
		answer []byte
		same   bool
	}{
		{"the same", ADISC{Cmd: 0x02, PortName: peerPort, NodeName: peerNode, ID: 0x20}.Append(nil), true},
		{"another port", ADISC{Cmd: 0x02, PortName: peerPort + 1, NodeName: peerNode, ID: 0x20}.Append(nil), false},
		{"another node", ADISC{Cmd: 0x02, PortName: peerPort, NodeName: peerNode + 1, ID: 0x20}.Append(nil), false},
		{"another address", ADISC{Cmd: 0x02, PortName: peerPort, NodeName: peerNode, ID: 0x21}.Append(nil), false},
		{"refused", rjtELS, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, r := up(t)
			var err error
			l.ELS(l.now, 0x20, AppendCmd(nil, ELSRTV), func(_ Time, _ []byte, e error) { err = e })
			l.take()
			l.LinkUp(l.now, info)
			if err != ErrOffline {
				t.Errorf("a request under way: %v", err)
			}
			f := l.one()
			want := ADISC{Cmd: 0x52, HardAddr: 0x10, PortName: ownPort, NodeName: ownNode, ID: 0x10}.Append(nil)
			if f.SID != 0x10 || f.DID != 0x20 || !bytes.Equal(f.Payload, want) || r.Ready() {
				t.Errorf("%v with %x, ready %v", f.String(), f.Payload, r.Ready())
			}
			l.answer(f, c.answer)
			if r.Ready() != c.same || (len(l.resumed) == 1) != c.same || (len(l.out) == 1) == c.same {
				t.Errorf("ready %v, resumed %v, out %v", r.Ready(), l.resumed, l.out)
			}
			if c.same {
				l.silent("resumed")
			} else {
				l.expect("changed", l.take(), "LOGO 000010>000020")
			}
		})
	}
	t.Run("own address", func(t *testing.T) {
		l, r := up(t)
		l.LinkUp(l.now, LinkInfo{Loop: true, ALPA: 0x11})
		l.expect("moved", l.take(), "LOGO 000011>000020")
		if r.LoggedIn() || l.ID() != 0x11 || len(l.out) != 1 {
			t.Errorf("logged in %v at %v, out %v", r.LoggedIn(), l.ID(), l.out)
		}
	})
	t.Run("from point to point", func(t *testing.T) { // address 1 now belongs to another port
		l := newLab(t, nil)
		l.LinkUp(0, LinkInfo{})
		l.answer(l.one(), login(0x02, peerPort, peerNode, 0))
		l.answer(l.one(), login(0x02, peerPort, peerNode, 0))
		l.LinkUp(l.now, LinkInfo{Loop: true, ALPA: 1})
		l.expect("other topology", l.take(), "LOGO 000001>000002")
		if l.Remote(2) != nil {
			t.Error("still logged in")
		}
	})
	t.Run("from a fabric", func(t *testing.T) {
		l, _ := onFabric(t, false, nil)
		l.LinkUp(l.now, info)
		l.expect("other topology", l.take(), "LOGO 000010>010200")
		if l.HasDirectory() || !l.InOrder() {
			t.Errorf("directory %v, in order %v", l.HasDirectory(), l.InOrder())
		}
	})
}

// TestFAN: after a LIP on a public loop the FAN decides. If fabric, F_Port and loop are unchanged,
// logins continue. Otherwise FLOGI decides. [FCVI-7.7-4]
func TestFAN(t *testing.T) {
	info := LinkInfo{Loop: true, FLPort: true, ALPA: 0xEF}
	good := FAN{LoopFabric: 0x010100, PortName: fPort, FabricName: fName}
	for _, c := range []struct {
		name   string
		change func(*FAN)
		same   bool
	}{
		{"the same", func(*FAN) {}, true},
		{"another F_Port", func(f *FAN) { f.PortName++ }, false},
		{"another fabric", func(f *FAN) { f.FabricName++ }, false},
		{"another area", func(f *FAN) { f.LoopFabric = 0x010000 }, false},
		{"another domain", func(f *FAN) { f.LoopFabric = 0x000100 }, false},
		{"another area, next number", func(f *FAN) { f.LoopFabric = 0x010200 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, r := onFabric(t, true, nil)
			f := good
			c.change(&f)
			l.receive(AddrFPort, l.ID(), f.Append(nil), 5)
			l.silent("FAN without a LIP")
			l.LinkUp(l.now, info)
			l.silent("LIP")
			if r.Ready() || l.State() != LoggingIn {
				t.Errorf("ready %v, %v", r.Ready(), l.State())
			}
			l.receive(AddrFPort, l.ID(), f.Append(nil), 5)
			sent := l.take()
			if c.same {
				l.expect("FAN", sent, "PLOGI 0101ef>fffffc") // registers anew
				if l.State() != Registering {
					t.Error(l.State())
				}
				l.answer(sent[0], login(0x02, 1, 1, 0))
				if l.serve(0, 0, 0); l.State() != Online || !r.Ready() || len(l.resumed) != 1 || len(l.out) != 0 {
					t.Errorf("%v, ready %v, resumed %v, out %v", l.State(), r.Ready(), l.resumed, l.out)
				}
				return
			}
			l.expect("FAN", sent, "FLOGI 0000ef>fffffe")
		})
	}
	t.Run("not on a loop", func(t *testing.T) {
		l, _ := onFabric(t, false, nil)
		l.LinkUp(l.now, LinkInfo{})
		l.take()
		l.receive(AddrFPort, l.ID(), good.Append(nil), 5)
		l.silent("FAN to a port of a fabric")
	})
	t.Run("silence", func(t *testing.T) {
		l, _ := onFabric(t, true, nil)
		l.LinkUp(l.now, info)
		l.wait(l.EDTOV())
		l.expect("no FAN", l.take(), "FLOGI 0000ef>fffffe")
	})
}

// TestFabricAgain: after a link initialisation FLOGI decides whether logins continue. They do if
// the address and both names are unchanged. [FCVI-7.7-5]
func TestFabricAgain(t *testing.T) {
	for _, c := range []struct {
		name       string
		id         Addr
		port, node WWN
		same       bool
		logo       []string
	}{
		{name: "the same", id: ownID, port: fPort, node: fName, same: true},
		{name: "another F_Port", id: ownID, port: fPort + 1, node: fName, logo: []string{"LOGO 010100>010200"}},
		{name: "another fabric", id: ownID, port: fPort, node: fName + 1, logo: []string{"LOGO 010100>010200"}},
		{name: "another address", id: ownID + 0x200, port: fPort, node: fName, logo: []string{"LOGO 010300>010200"}},
	} {
		l, r := onFabric(t, false, nil)
		l.LinkUp(l.now, LinkInfo{})
		if r.Ready() {
			t.Errorf("%s: data may flow before FLOGI", c.name)
		}
		sent := l.serve(c.id, c.port, c.node)
		l.expect(c.name, sent, c.logo...)
		for _, f := range sent {
			if x, _, err := ParseLOGO(f.Payload); err != nil || x.ID != ownID || x.PortName != l.cfg.PortName {
				t.Errorf("%s: %+v, %v, in place of the login's own address and name", c.name, x, err)
			}
		}
		if l.State() != Online || l.ID() != c.id || r.Ready() != c.same ||
			(len(l.resumed) == 1) != c.same || (len(l.out) == 1) == c.same {
			t.Errorf("%s: %v at %v, ready %v, resumed %v, out %v", c.name, l.State(), l.ID(),
				r.Ready(), l.resumed, l.out)
		}
	}
}

// TestStateChange: if an RSCN concerns a port, the port's name is looked up in the directory, or
// the port itself is asked. A changed port is logged out. [FCVI-7.7-6]
func TestStateChange(t *testing.T) {
	rscn := AppendRSCN(nil, RSCNPage{ID: peerID})
	name := func(w WWN) []byte { return append(bytes.Clone(accCT), NSBody{}.Name(w)...) }
	told := func(l *lab, want ...string) []Frame {
		l.t.Helper()
		l.receive(AddrFabricController, l.ID(), rscn, 3)
		sent := l.take()
		l.expect("RSCN", sent, append([]string{"LS_ACC 010100>fffffd"}, want...)...)
		return sent[1:]
	}
	for _, c := range []struct {
		name   string
		answer []byte
		logo   []string
		out    bool
		asked  bool // the port itself is asked, not the directory
	}{
		{name: "the same", answer: name(peerPort)},
		{name: "another name", answer: name(peerPort + 1), logo: []string{"LOGO 010100>010200"}, out: true},
		{name: "gone", answer: rjtCT, out: true},
		{name: "an answer without a name", answer: accCT, asked: true},
		{name: "an answer cut short", answer: name(peerPort)[:CTLen+7], asked: true},
		{name: "no answer", answer: noReply, asked: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, r := onFabric(t, false, nil)
			f := told(l, "GPN_ID 010100>fffffc")[0]
			if want := testkit.Hex("01 000000 fc 02 00 00 0112 0000 00000000 00 010200"); !bytes.Equal(f.Payload, want) {
				t.Errorf("asked %x, want %x", f.Payload, want)
			}
			if r.Ready() {
				t.Error("data may flow before the answer")
			}
			told(l) // a second report while the question is outstanding: no second question is sent
			if c.answer == nil {
				l.wait(7 * l.RATOV())
			} else {
				l.answer(f, c.answer)
			}
			sent := l.take()
			if c.asked {
				var adisc []Frame
				for _, f := range sent {
					if CmdOf(f.Payload) == ELSADISC {
						adisc = append(adisc, f)
					}
				}
				if len(adisc) == 0 || r.Ready() {
					t.Fatalf("sent %v, ready %v", show(sent), r.Ready())
				}
				l.answer(adisc[len(adisc)-1], ADISC{Cmd: 0x02, PortName: peerPort, NodeName: peerNode, ID: peerID}.Append(nil))
			} else {
				l.expect("answered", sent, c.logo...)
			}
			if r.LoggedIn() == c.out || r.Ready() == c.out || (len(l.resumed) == 1) == c.out ||
				(len(l.out) == 1) != c.out {
				t.Errorf("logged in %v, ready %v, resumed %v, out %v", r.LoggedIn(), r.Ready(), l.resumed, l.out)
			}
			if !c.out {
				told(l, "GPN_ID 010100>fffffc") // the next report leads to another question
			}
		})
	}
	t.Run("without a directory", func(t *testing.T) {
		l, _ := onFabric(t, false, nil)
		l.directory = false
		told(l, "ADISC 010100>010200")
	})
	t.Run("during login", func(t *testing.T) { // the result of the login decides
		l, r := onFabric(t, false, nil)
		l.Logout(l.now, r)
		l.take()
		l.Login(l.now, peerID, func(Time, *Remote, error) {})
		l.take()
		told(l)
	})
	t.Run("logged out in the meantime", func(t *testing.T) {
		l, r := onFabric(t, false, nil)
		f := told(l, "GPN_ID 010100>fffffc")[0]
		l.Logout(l.now, r)
		l.take()
		l.answer(f, name(peerPort))
		l.silent("after LOGO")
		if len(l.resumed) != 0 || len(l.out) != 1 {
			t.Errorf("resumed %v, out %v", l.resumed, l.out)
		}
	})
	t.Run("link lost in the meantime", func(t *testing.T) { // the next link event starts a new verification
		l, r := onFabric(t, false, nil)
		told(l, "GPN_ID 010100>fffffc")
		l.LinkDown(l.now)
		if len(l.out) != 0 || !r.LoggedIn() {
			t.Errorf("logged out %v", l.out)
		}
		l.LinkUp(l.now, LinkInfo{})
		if l.expect("new link", l.serve(ownID, fPort, fName)); !r.Ready() {
			t.Error("not resumed")
		}
	})
}

// TestLogout: when a mapping is discarded, the port sends a single LOGO. [FCVI-7.7-8]
func TestLogout(t *testing.T) {
	l, r := onFabric(t, false, nil)
	l.Logout(l.now, r)
	f := l.one()
	if want := testkit.Hex("05000000 00010100 2001020000000005"); f.DID != peerID || !bytes.Equal(f.Payload, want) {
		t.Errorf("%v with %x, want %x", f.String(), f.Payload, want)
	}
	l.Logout(l.now, r)
	l.silent("a second time")
	if len(l.out) != 1 || l.Stats().LogosSent != 1 {
		t.Errorf("logged out %v, %+v", l.out, l.Stats())
	}
}

// TestDISC: the port answers ADISC and PDISC with its names and address if the sender is logged in
// under the names in the request. Otherwise the answer is LS_RJT. [FCVI-7.7-7]
func TestDISC(t *testing.T) {
	adisc := func(port, node WWN, id Addr) []byte {
		return ADISC{Cmd: 0x52, PortName: port, NodeName: node, ID: id}.Append(nil)
	}
	for _, loop := range []bool{false, true} {
		mine := ADISC{Cmd: 0x02, PortName: ownPort, NodeName: ownNode, ID: ownID}
		if loop {
			mine.ID, mine.HardAddr = ownID|0xEF, 0xEF
		}
		pdisc := newLab(t, nil).params(0x02)
		for _, c := range []struct {
			name string
			from Addr
			req  []byte
			want []byte // nil means a rejection with the reason below
			rsn  uint8
			exp  uint8
			out  bool // the login ends
		}{
			{name: "ADISC", from: peerID, req: adisc(peerPort, peerNode, peerID), want: mine.Append(nil)},
			{name: "ADISC, another port", from: peerID, req: adisc(peerPort+1, peerNode, peerID), want: mine.Append(nil), out: true},
			{name: "ADISC, another node", from: peerID, req: adisc(peerPort, peerNode+1, peerID), want: mine.Append(nil), out: true},
			{name: "ADISC, another address", from: peerID, req: adisc(peerPort, peerNode, peerID+1), want: mine.Append(nil), out: true},
			{name: "ADISC, stranger", from: 0x010300, req: adisc(peerPort, peerNode, 0x010300), rsn: 0x09, exp: 0x1E},
			{name: "ADISC, cut", from: peerID, req: adisc(peerPort, peerNode, peerID)[:ADISCLen-1], rsn: 0x07},
			{name: "PDISC", from: peerID, req: login(0x50, peerPort, peerNode, 0), want: pdisc.Append(nil)},
			{name: "PDISC, another port", from: peerID, req: login(0x50, peerPort+1, peerNode, 0), rsn: 0x09, exp: 0x1E},
			{name: "PDISC, another node", from: peerID, req: login(0x50, peerPort, peerNode+1, 0), rsn: 0x09, exp: 0x1E},
			{name: "PDISC, stranger", from: 0x010300, req: login(0x50, peerPort, peerNode, 0), rsn: 0x09, exp: 0x1E},
			{name: "PDISC, cut", from: peerID, req: login(0x50, peerPort, peerNode, 0)[:LoginLen-1], rsn: 0x07},
		} {
			l, r := onFabric(t, loop, nil)
			l.receive(c.from, l.ID(), c.req, 3)
			sent := l.take()
			if len(sent) == 0 {
				t.Errorf("%s: no answer", c.name)
				continue
			}
			want := c.want
			if want == nil {
				want = LSRjt{Reason: c.rsn, Explanation: c.exp}.Append(nil)
			}
			if f := sent[0]; f.DID != c.from || f.OXID != 3 || f.RCtl != RCtlELSReply || !bytes.Equal(f.Payload, want) {
				t.Errorf("%s: %v with %x, want %x", c.name, f.String(), f.Payload, want)
			}
			if (len(sent) == 2) != c.out || r.LoggedIn() == c.out {
				t.Errorf("%s: sent %v, logged in %v", c.name, show(sent), r.LoggedIn())
			}
		}
		// A login still in progress does not count as a login.
		for _, req := range [][]byte{adisc(0, 0, 0x010400), login(0x50, 0, 0, 0)} {
			l, _ := onFabric(t, loop, nil)
			l.Login(l.now, 0x010400, func(Time, *Remote, error) {})
			l.take()
			l.receive(0x010400, l.ID(), req, 3)
			if f := l.one(); !bytes.Equal(f.Payload, LSRjt{Reason: 0x09, Explanation: 0x1E}.Append(nil)) {
				t.Errorf("before the login: %x", f.Payload)
			}
		}
	}
}

// TestABTS: an ABTS is sent without Sequence Initiative, and the result is reported once.
// [FCFS-2.8-1] [FCFS-2.8-3]
func TestABTS(t *testing.T) {
	type outcome struct {
		calls    int
		accepted bool
	}
	abort := func(l *lab, r *Remote, responder bool) *outcome {
		o := new(outcome)
		l.NPort.Abort(l.now, r, Class3, 0x1234, 0x5678, 0x9A, responder, func(_ Time, accepted bool) {
			o.calls++
			o.accepted = accepted
		})
		return o
	}
	ba := func(l *lab, rctl RCtl, payload []byte) {
		l.Receive(l.now, &Frame{SOF: SOFi3, EOF: EOFt, Payload: payload,
			Header: Header{RCtl: rctl, DID: l.ID(), SID: peerID, Type: TypeBLS,
				FCtl: FCtlExchResponder | FCtlLastSeq | FCtlEndSeq, SeqID: 0x9A, OXID: 0x1234, RXID: 0x5678}})
	}
	for _, responder := range []bool{false, true} {
		l, r := onFabric(t, false, nil)
		o := abort(l, r, responder)
		f := l.one()
		// The frame has R_CTL ABTS and TYPE BLS. F_CTL has end of sequence and initiative, and bit
		// 23 if a responder sends it. Parameter is 0: the ABTS means the whole exchange.
		want := "81 010200 00 010100 00 090000 9a 00 0000 1234 5678 00000000"
		if responder {
			want = "81 010200 00 010100 00 890000 9a 00 0000 1234 5678 00000000"
		}
		if got := f.Header.Append(nil); !bytes.Equal(got, testkit.Hex(want)) || f.SOF != SOFi3 ||
			f.EOF != EOFt || len(f.Payload) != 0 {
			t.Errorf("%v %v %x, want %s", f.SOF, f.EOF, got, want)
		}
		if again := abort(l, r, responder); again.calls != 1 || again.accepted {
			t.Errorf("while it is under way: %+v", again)
		}
		l.silent("while it is under way")
		l.wait(2*l.RATOV() - 1)
		if o.calls != 0 {
			t.Errorf("given up early: %+v", o)
		}
		l.wait(1)
		if o.calls != 1 || o.accepted || l.Stats().Timeouts != 1 {
			t.Errorf("no answer: %+v, %+v", o, l.Stats())
		}
		abort(l, r, responder) // after that the ABTS may be sent again
		l.one()
	}
	for rctl, accepted := range map[RCtl]bool{RCtlBAAcc: true, RCtlBARjt: false} {
		l, r := onFabric(t, false, nil)
		o := abort(l, r, false)
		l.take()
		payload := BARjt{Reason: BARjtLogical, Explanation: BARjtInvalidID}.Append(nil)
		if accepted {
			payload = BAAcc{OXID: 0x1234, RXID: 0x5678, HighCnt: 0xFFFF}.Append(nil)
		}
		ba(l, rctl, payload)
		l.wait(time.Minute)
		if o.calls != 1 || o.accepted != accepted || l.Stats().Timeouts != 0 {
			t.Errorf("%v: %+v, %+v", rctl, o, l.Stats())
		}
	}
	t.Run("not possible", func(t *testing.T) {
		l, r := onFabric(t, false, nil)
		l.LinkDown(l.now)
		if o := abort(l, r, false); o.calls != 1 || o.accepted || len(l.aborts) != 0 {
			t.Errorf("without a link: %+v", o)
		}
		l, r = onFabric(t, false, nil)
		l.Logout(l.now, r)
		l.take()
		if o := abort(l, r, false); o.calls != 1 || o.accepted {
			t.Errorf("after LOGO: %+v", o)
		}
		l.silent("after LOGO")
	})
	t.Run("class 2", func(t *testing.T) { // the frames of the exchange are not sent again
		l, r := onFabric(t, false, func(c *PortConfig) { c.Class2 = true })
		for _, ox := range []uint16{0x1234, 0x1235} {
			l.NPort.Send(l.now, r, Class2, true,
				&Frame{Header: Header{RCtl: RCtlUnsolData, Type: TypeFCVI,
					FCtl: FCtlFirstSeq | FCtlLastSeq | FCtlEndSeq, OXID: ox}})
		}
		abort(l, r, false)
		l.take()
		l.wait(l.EDTOV())
		if f := l.one(); f.OXID != 0x1235 {
			t.Errorf("sent again: %v", f.String())
		}
	})
}

// TestRun sends frames of one sequence as a run. From frame to frame SEQ_CNT rises by one and
// Parameter by the length. Only the first frame has SOFi. [FCVI-5.8-5] [FCVI-5.8-6] [FCVI-5.8-11]
func TestRun(t *testing.T) {
	data := []byte("aaaabbbbcccc")
	for _, class := range []Class{Class2, Class3} {
		for _, first := range []bool{true, false} {
			l, r := onFabric(t, false, func(c *PortConfig) { c.Class2 = true })
			r.credit = 10
			f := Frame{Header: Header{RCtl: RCtlUnsolData, Type: TypeFCVI,
				FCtl: FCtlFirstSeq | FCtlRelOffset, SeqID: 7, SeqCnt: 5, OXID: 3, RXID: Unassigned, Param: 100}}
			before := l.Stats().SentFrames
			if !l.SendRun(l.now, r, class, first, &f, 4, data) {
				t.Fatal("not sent")
			}
			sent := l.take()
			if len(sent) != 3 || l.Stats().SentFrames-before != 3 {
				t.Fatalf("sent %v, %d counted", sent, l.Stats().SentFrames-before)
			}
			for i, got := range sent {
				sof, fctl := SOFn3, FCtl(0x200008)
				switch {
				case class == Class2 && first && i == 0:
					sof = SOFi2
				case class == Class2:
					sof = SOFn2
				case first && i == 0:
					sof = SOFi3
				}
				if class == Class2 {
					fctl |= 0x001000 // ACK_1
				}
				want := Header{RCtl: RCtlUnsolData, DID: peerID, SID: ownID, Type: TypeFCVI,
					FCtl: fctl, SeqID: 7, SeqCnt: uint16(5 + i), OXID: 3, RXID: Unassigned, Param: uint32(100 + 4*i)}
				if got.Header != want || got.SOF != sof || got.EOF != EOFn ||
					string(got.Payload) != string(data[4*i:4*i+4]) {
					t.Errorf("class %d, frame %d: %v %v %+v %q\nwant %v EOFn %+v", class, i,
						got.SOF, got.EOF, got.Header, got.Payload, sof, want)
				}
			}
			l.LinkDown(l.now)
			if l.SendRun(l.now, r, class, first, &f, 4, data) {
				t.Errorf("class %d: sent without a link", class)
			}
			l.silent("without a link")
		}
	}
}

// TestCredit: the number of unacknowledged class 2 frames does not exceed the peer's end-to-end
// credit, 3 here. [FCFS-2.9-3]
func TestCredit(t *testing.T) {
	l, r := onFabric(t, false, func(c *PortConfig) { c.Class2 = true })
	for i := range uint16(5) {
		l.NPort.Send(l.now, r, Class2, true,
			&Frame{Header: Header{RCtl: RCtlUnsolData, Type: TypeFCVI,
				FCtl: FCtlFirstSeq | FCtlLastSeq | FCtlEndSeq, OXID: i}})
	}
	for _, want := range []int{3, 1, 1, 0, 0} {
		sent := l.take()
		if len(sent) != want {
			t.Fatalf("%d frames, want %d", len(sent), want)
		}
		h := r.out[0].f.Header
		l.Receive(l.now, &Frame{SOF: SOFn2, EOF: EOFt,
			Header: Header{RCtl: RCtlACK1, DID: ownID, SID: peerID, Type: TypeBLS,
				FCtl: FCtlExchResponder | FCtlSeqRecipient,
				OXID: h.OXID, SeqID: h.SeqID, SeqCnt: h.SeqCnt, RXID: h.RXID, Param: 1}})
	}
}

// TestRefused checks the answer to a class 2 data frame that can't be accepted. It is P_RJT with
// action 1 and the reason in the Parameter. If the sender is not logged in, a LOGO follows.
// [FCFS-2.9-4] [FCVI-6.1-2] [FCFS-2.7-8]
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		from  Addr
		typ   Type
		size  int
		sof   SOF
		want  uint32 // Parameter of the P_RJT; 0 means that none is sent
		logo  bool
		class bool
	}{
		{"not logged in", 0x010300, TypeFCVI, 8, SOFi2, 0x01160000, true, true},
		{"not logged in, class 3", 0x010300, TypeFCVI, 8, SOFi3, 0, true, true},
		{"type unknown", peerID, 0x30, 8, SOFi2, 0x01070000, false, true},
		{"class not offered", peerID, TypeFCVI, 8, SOFi2, 0x01050000, false, false},
		{"too long", peerID, TypeFCVI, 516, SOFi2, 0x01130000, false, true},
	} {
		l, _ := onFabric(t, false, func(p *PortConfig) { p.Class2, p.RxSize = c.class, 512 })
		l.Receive(l.now, &Frame{SOF: c.sof, EOF: EOFn, Payload: make([]byte, c.size),
			Header: Header{RCtl: RCtlUnsolData, DID: ownID, SID: c.from, Type: c.typ,
				FCtl: FCtlFirstSeq | FCtlLastSeq | FCtlEndSeq, SeqID: 2, SeqCnt: 3, OXID: 4, RXID: 5}})
		sent := l.take()
		if c.want != 0 {
			if len(sent) == 0 {
				t.Errorf("%s: no answer", c.name)
				continue
			}
			f := sent[0]
			if f.RCtl != 0xC2 || f.DID != c.from || f.Param != c.want || f.OXID != 4 ||
				f.RXID != 5 || f.SeqID != 2 || f.SeqCnt != 3 {
				t.Errorf("%s: %v with Parameter %08x, want %08x", c.name, f.String(), f.Param, c.want)
			}
			sent = sent[1:]
		}
		if logo := len(sent) == 1 && CmdOf(sent[0].Payload) == ELSLOGO &&
			sent[0].DID == c.from; logo != c.logo || len(sent) > 1 {
			t.Errorf("%s: sent %v", c.name, show(sent))
		}
		if n := l.Stats().NotLoggedIn; (n == 1) != c.logo {
			t.Errorf("%s: counted %d as not logged in", c.name, n)
		}
	}
}

// TestFARPMatch: bits 0 to 2 of the match code points select the port name, the node name and the
// IP address. All selected identifiers must match. Code point 0 is reserved, and so are those above
// 7. [FCVI-7.5-3]
func TestFARPMatch(t *testing.T) {
	first, second := FARPIP(netip.MustParseAddr("10.0.0.5")), FARPIP(netip.MustParseAddr("10.0.0.6"))
	for match := range 256 {
		for fits := range 8 { // bit mask of the identifiers that match
			q := FARP{Match: uint8(match), RespPortName: 1, RespNode: 1,
				RespIP: FARPIP(netip.MustParseAddr("10.0.0.9"))}
			if fits&1 != 0 {
				q.RespPortName = ownPort
			}
			if fits&2 != 0 {
				q.RespNode = ownNode
			}
			if fits&4 != 0 {
				q.RespIP = second
			}
			ip, ok := q.matches(ownPort, ownNode, [][16]byte{first, second})
			want := match >= 1 && match <= 7 && match&^fits == 0
			if ok != want {
				t.Errorf("match %#x with %03b right: %v", match, fits, ok)
			}
			wantIP := first // the IP address in the reply, if the request names none
			if match&4 != 0 {
				wantIP = second
			}
			if ok && ip != wantIP {
				t.Errorf("match %#x: address %x, want %x", match, ip, wantIP)
			}
		}
	}
	q := FARP{Match: 1, RespPortName: ownPort}
	if ip, ok := q.matches(ownPort, ownNode, nil); !ok || ip != [16]byte{} {
		t.Errorf("a port without addresses: %x, %v", ip, ok)
	}
}

// TestFARPOnce: a request is answered by at most one reply. The same request, from the same port
// with the same OX_ID, is not answered again within R_A_TOV. [FCVI-7.5-4] [FCVI-7.5-6]
func TestFARPOnce(t *testing.T) {
	l, _ := onFabric(t, false, nil)
	l.wait(time.Hour)
	ask := func(from Addr, ox uint16) {
		q := FARP{Cmd: ELSFARPReq, Match: FARPMatchPN, Flags: FARPInitReply, ReqID: from,
			ReqPortName: 9, RespPortName: ownPort}
		l.receive(from, AddrBroadcast, q.Append(nil), ox)
	}
	for _, c := range []struct {
		name    string
		after   time.Duration
		from    Addr
		ox      uint16
		answers bool
	}{
		{"first", 0, peerID, 1, true},
		{"again", 0, peerID, 1, false},
		{"another exchange", 0, peerID, 2, true},
		{"another port", 0, 0x010300, 1, true},
		{"again, late", l.RATOV() - 1, peerID, 1, false},
		{"again, later", 1, peerID, 1, true},
	} {
		l.wait(c.after)
		before := l.Stats().Duplicates
		ask(c.from, c.ox)
		sent := l.take()
		if (len(sent) == 1) != c.answers || l.Stats().Duplicates-before != map[bool]uint64{false: 1}[c.answers] {
			t.Errorf("%s: sent %v, %d duplicates", c.name, show(sent), l.Stats().Duplicates-before)
		}
	}
	l.wait(time.Minute)
	l.silent("a reply without an acknowledgement")
}

// TestFARPAnswer checks the answers to a search for the port. The search may request a FARP-REPLY,
// a PLOGI, both, or none. The FARP-REPLY is the request with the names, the address and the IP
// address of the port. [FCVI-7.5-4]
func TestFARPAnswer(t *testing.T) {
	for flags := range uint8(4) {
		l, _ := onFabric(t, false, nil)
		q := FARP{Cmd: ELSFARPReq, Match: FARPMatchIP, Flags: flags, ReqID: 0x010300, ReqPortName: 9,
			ReqNode: 8, RespIP: l.ips[1]}
		l.receive(0x010300, AddrBroadcast, q.Append(nil), 4)
		var want []string
		if flags&FARPInitReply != 0 {
			want = append(want, "FARP-REPLY 010100>010300")
		}
		if flags&FARPInitPLOGI != 0 {
			want = append(want, "PLOGI 010100>010300")
		}
		sent := l.take()
		l.expect(fmt.Sprint("flags ", flags), sent, want...)
		if flags&FARPInitReply == 0 || len(sent) == 0 {
			continue
		}
		a := q
		a.Cmd, a.RespID, a.RespPortName, a.RespNode = ELSFARPReply, ownID, ownPort, ownNode
		if got := sent[0]; got.RCtl != RCtlELSReq || !bytes.Equal(got.Payload, a.Append(nil)) {
			t.Errorf("flags %d: %v with %x, want %x", flags, got.String(), got.Payload, a.Append(nil))
		}
	}
}
