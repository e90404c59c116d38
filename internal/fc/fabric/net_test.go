package fabric_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
)

// A testPort is an N_Port whose upper level records notifications.
type testPort struct {
	*fc.NPort
	data    []string
	from    []fc.Addr
	out     []fc.Addr // ports reported as logged out
	resumed []fc.Addr
	acked   int
	failed  []uint8
	online  int
}

func (u *testPort) PortOnline(fc.Time) { u.online++ }
func (u *testPort) Frame(_ fc.Time, r *fc.Remote, f *fc.Frame) {
	u.data = append(u.data, string(f.Payload))
	u.from = append(u.from, r.Addr)
}
func (u *testPort) LoggedOut(_ fc.Time, r *fc.Remote)    { u.out = append(u.out, r.Addr) }
func (u *testPort) Resumed(_ fc.Time, r *fc.Remote)      { u.resumed = append(u.resumed, r.Addr) }
func (u *testPort) Acked(fc.Time, *fc.Remote, *fc.Frame) { u.acked++ }
func (u *testPort) Failed(_ fc.Time, _ *fc.Remote, _ *fc.Frame, reason uint8) {
	u.failed = append(u.failed, reason)
}
func (u *testPort) Abort(_ fc.Time, _ *fc.Remote, f *fc.Frame) bool { return f.OXID == 7 }

func newPort(n int, class2 bool) (*testPort, func(fc.Sender) fabric.Device) {
	u := &testPort{}
	mac := uint64(0x020000000000 + n)
	return u, func(out fc.Sender) fabric.Device {
		u.NPort = fc.NewNPort(fc.PortConfig{PortName: fc.PortName(mac, 1), NodeName: fc.NodeName(mac), Class2: class2,
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})}}, out)
		u.Register(fc.TypeFCVI, u)
		return u.NPort
	}
}

func (u *testPort) login(t *testing.T, n *fabric.Net, a fc.Addr) *fc.Remote {
	t.Helper()
	var r *fc.Remote
	var err error
	done := false
	u.Login(n.Now(), a, func(_ fc.Time, got *fc.Remote, e error) { r, err, done = got, e, true })
	n.RunUntil(2*time.Minute, func() bool { return done })
	if err != nil || r == nil {
		t.Fatalf("login to %v: %v", a, err)
	}
	return r
}

func (u *testPort) sendText(n *fabric.Net, r *fc.Remote, c fc.Class, ox uint16, s string) bool {
	return u.Send(n.Now(), r, c, true,
		&fc.Frame{Payload: []byte(s), Header: fc.Header{RCtl: fc.RCtlUnsolData, Type: fc.TypeFCVI,
			FCtl: fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq, SeqID: r.NextSeqID(), OXID: ox, RXID: fc.Unassigned}})
}

func newSwitch(domain uint8) *fabric.Switch {
	return fabric.NewSwitch(fabric.SwitchConfig{Name: fc.NodeName(0x020000001000 + uint64(domain)), Domain: domain})
}

func TestTopologies(t *testing.T) {
	tests := []struct {
		name  string
		topo  fc.Topology
		dir   bool
		build func(n *fabric.Net, a, b func(fc.Sender) fabric.Device)
	}{
		{"point-to-point", fc.PointToPoint, false, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) { n.Connect(a, b) }},
		{"private loop", fc.PrivateLoop, false, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) { n.Loop(nil, a, b) }},
		{"public loop", fc.PublicLoop, true, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) { n.Loop(newSwitch(1), a, b) }},
		{"fabric", fc.FabricAttached, true, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) {
			sw := newSwitch(1)
			n.Attach(sw, a)
			n.Attach(sw, b)
		}},
		{"two domains", fc.FabricAttached, true, func(n *fabric.Net, a, b func(fc.Sender) fabric.Device) {
			s1, s2, s3 := newSwitch(1), newSwitch(2), newSwitch(3)
			n.Attach(s1, a)
			n.Attach(s3, b)
			n.JoinSwitches(s1, s2)
			n.JoinSwitches(s2, s3)
		}},
	}
	for _, tt := range tests { // [FCFS-3.2-1] [FCFS-3.2-2]
		t.Run(tt.name, func(t *testing.T) {
			n := fabric.NewNet(1)
			a, mka := newPort(1, false)
			b, mkb := newPort(2, false)
			tt.build(n, mka, mkb)
			n.Start()
			if !n.RunUntil(3*time.Minute, func() bool { return a.State() == fc.Online && b.State() == fc.Online }) {
				t.Fatalf("states %v, %v; a %+v", a.State(), b.State(), a.Stats())
			}
			n.Run(time.Second)
			if a.Topology() != tt.topo || b.Topology() != tt.topo || a.HasDirectory() != tt.dir {
				t.Errorf("topologies %v, %v, directory %v", a.Topology(), b.Topology(), a.HasDirectory())
			}
			if a.ID() == b.ID() || a.ID() == 0 || b.ID() == 0 {
				t.Fatalf("addresses %v, %v", a.ID(), b.ID())
			}
			if tt.topo == fc.PointToPoint && (b.ID() != 1 || a.ID() != 2) { // b has the higher name [FCFS-2.7-4]
				t.Errorf("addresses %v, %v", a.ID(), b.ID())
			}
			r := a.login(t, n, b.ID())
			if r.PortName != b.Name() || r.NodeName != b.Node() {
				t.Errorf("logged in with %v/%v", r.PortName, r.NodeName)
			}
			a.sendText(n, r, fc.Class3, 1, "hello")
			b.sendText(n, b.login(t, n, a.ID()), fc.Class3, 2, "and back")
			n.Run(time.Second)
			if len(b.data) != 1 || b.data[0] != "hello" || len(a.data) != 1 || a.data[0] != "and back" {
				t.Errorf("delivered %q, %q", a.data, b.data)
			}
			var found fc.FARP
			var err error
			a.FARP(n.Now(), fc.FARPMatchIP, fc.FARP{RespIP: b.IPForms()[0]}, fc.FARPInitReply,
				func(_ fc.Time, f fc.FARP, e error) { found, err = f, e })
			n.Run(time.Second)
			if err != nil || found.RespID != b.ID() || found.RespPortName != b.Name() {
				t.Errorf("FARP found %+v, %v", found, err)
			}
			if tt.dir {
				var ids []fc.Addr
				ip := b.IPForms()[0]
				a.Query(n.Now(), fc.NSGIDIPP, ip[:], func(_ fc.Time, reply []byte, e error) {
					err = e
					fc.ParseIDList(reply, func(id fc.Addr) { ids = append(ids, id) })
				})
				n.Run(time.Second)
				if err != nil || len(ids) != 1 || ids[0] != b.ID() {
					t.Errorf("GID_IPP found %v, %v", ids, err)
				}
			}
		})
	}
}

// switched returns two ports on a switch. Both are online. class2 makes the first port offer class
// 2.
func switched(class2 bool) (n *fabric.Net, a, b *testPort) {
	n = fabric.NewNet(1)
	a, mka := newPort(1, class2)
	b, mkb := newPort(2, false)
	sw := newSwitch(1)
	n.Attach(sw, mka)
	n.Attach(sw, mkb)
	n.Start()
	n.RunUntil(time.Minute, func() bool { return a.State() == fc.Online && b.State() == fc.Online })
	return n, a, b
}

func BenchmarkNet(b *testing.B) {
	n, pa, pb := switched(false)
	var r *fc.Remote
	pa.Login(n.Now(), pb.ID(), func(_ fc.Time, got *fc.Remote, _ error) { r = got })
	n.Run(time.Second)
	b.ReportAllocs()
	payload := string(make([]byte, 2048))
	for b.Loop() {
		pa.sendText(n, r, fc.Class3, 1, payload)
		n.Run(20 * time.Microsecond)
		pb.data, pb.from = pb.data[:0], pb.from[:0]
	}
}

// online returns two ports on a switch. It waits until both are online and logged in.
func online(t *testing.T, class2 bool, change func(n *fabric.Net)) (n *fabric.Net, a, b *testPort) {
	t.Helper()
	n = fabric.NewNet(1)
	a, mka := newPort(1, class2)
	b, mkb := newPort(2, class2)
	sw := newSwitch(1)
	n.Attach(sw, mka)
	n.Attach(sw, mkb)
	if change != nil {
		change(n)
	}
	n.Start()
	if !n.RunUntil(3*time.Minute, func() bool { return a.State() == fc.Online && b.State() == fc.Online }) {
		t.Fatal(a.State(), b.State())
	}
	n.Run(time.Second)
	return n, a, b
}

// els sends a link service request and returns the result.
func (u *testPort) els(n *fabric.Net, to fc.Addr, payload []byte) (reply []byte, err error) {
	u.ELS(n.Now(), to, payload, func(_ fc.Time, r []byte, e error) { reply, err = append([]byte{}, r...), e })
	n.Run(time.Minute)
	return reply, err
}

// TestFCFS_2_7 checks the answers of ports and of the fabric to link services.
func TestFCFS_2_7(t *testing.T) {
	var flogi, acc fc.Frame
	n, a, b := online(t, false, func(n *fabric.Net) {
		n.Tap(func(_ fc.Time, _ *fabric.End, f *fc.Frame) {
			if f.Type == fc.TypeELS && fc.CmdOf(f.Payload) == fc.ELSFLOGI && flogi.DID == 0 {
				flogi = *f
			}
			if f.Type == fc.TypeELS && fc.CmdOf(f.Payload) == fc.ELSAcc && acc.DID == 0 {
				acc = *f
			}
		})
	})
	if flogi.SID != 0 || flogi.DID != fc.AddrFPort || acc.DID != a.ID() || acc.SID != fc.AddrFPort { // [FCFS-2.7-3]
		t.Errorf("FLOGI %v>%v, answered to %v", flogi.SID, flogi.DID, acc.DID)
	}
	rjt := func(payload []byte, reason, explanation uint8) {
		t.Helper()
		_, err := a.els(n, b.ID(), payload)
		if r, ok := err.(fc.LSRjt); !ok || r.Reason != reason || r.Explanation != explanation {
			t.Errorf("%x: %v", payload[:4], err)
		}
	}
	rjt([]byte{0x20, 0, 0, 0}, fc.RjtNotSupported, fc.ExplUnsupported)      // PRLI [FCFS-2.7-7] [FCFS-2.7-6]
	rjt([]byte{0x05, 0, 0, 0}, fc.RjtProtocol, fc.ExplNone)                 // a truncated LOGO
	rjt(fc.ADISC{Cmd: fc.ELSADISC}.Append(nil), fc.RjtUnable, fc.ExplLogin) // [FCFS-2.7-8]
	if r, err := a.els(n, b.ID(), append(fc.AppendCmd(nil, fc.ELSECHO), "hello"...)); err != nil ||
		string(r[4:]) != "hello" {
		t.Errorf("ECHO: %q, %v", r, err)
	}
	if r, err := a.els(n, fc.AddrFPort, fc.AppendCmd(nil, fc.ELSRTV)); err != nil || len(r) != fc.RTVAccLen {
		t.Errorf("RTV: %x, %v", r, err)
	}
	// The port answers both ADISC and PDISC. [FCVI-7.7-7]
	a.login(t, n, b.ID())
	if r, err := a.els(n, b.ID(), fc.ADISC{Cmd: fc.ELSADISC, PortName: a.Name(), NodeName: a.Node(), ID: a.ID()}.Append(nil)); err != nil || len(r) != fc.ADISCLen {
		t.Errorf("ADISC: %v", err)
	}
	l := fc.Login{Cmd: fc.ELSPDISC, PortName: a.Name(), NodeName: a.Node(), RxSize: 2112}
	if r, err := a.els(n, b.ID(), l.Append(nil)); err != nil || len(r) != fc.LoginLen {
		t.Errorf("PDISC: %v", err)
	}
	// A LOGO ends only the sender's logins.
	if _, err := a.els(n, b.ID(), fc.LOGO{ID: 0x010900, PortName: b.Name()}.Append(nil)); err != nil ||
		b.Remote(a.ID()) == nil {
		t.Errorf("a forged LOGO ends a login: %v", err)
	}
	a.Logout(n.Now(), a.Remote(b.ID()))
	n.Run(time.Second)
	if len(a.out) != 1 || len(b.out) != 1 { // [FCFS-2.10-7]
		t.Errorf("logged out %v, %v", a.out, b.out)
	}
	// Data from a port without a login is answered by LOGO and not delivered. [FCVI-6.1-2]
	r := b.login(t, n, a.ID())
	a.Logout(n.Now(), a.Remote(b.ID()))
	b.sendText(n, r, fc.Class3, 1, "too late")
	n.Run(time.Second)
	if len(a.data) != 0 {
		t.Errorf("delivered %q", a.data)
	}
}

// TestFCFS_2_8: an ABTS is sent without Sequence Initiative and answered by BA_ACC or BA_RJT.
// [FCFS-2.8-1] [FCFS-2.8-3] [FCFS-2.8-4]
func TestFCFS_2_8(t *testing.T) {
	n, a, b := online(t, false, nil)
	r := a.login(t, n, b.ID())
	var abts, rjt fc.Frame
	n.Tap(func(_ fc.Time, _ *fabric.End, f *fc.Frame) {
		switch f.RCtl {
		case fc.RCtlABTS:
			abts = *f
		case fc.RCtlBARjt:
			rjt = *f
			rjt.Payload = append([]byte{}, f.Payload...)
		}
	})
	for ox, want := range map[uint16]bool{7: true, 8: false} { // the upper level knows exchange 7 only
		got := !want
		a.NPort.Abort(n.Now(), r, fc.Class3, ox, 0x1234, 9, false, func(_ fc.Time, accepted bool) { got = accepted })
		n.Run(time.Second)
		if got != want || abts.OXID != ox || abts.RXID != 0x1234 || abts.SeqID != 9 ||
			abts.Param != 0 || abts.Type != fc.TypeBLS {
			t.Errorf("exchange %d: accepted %v, %v", ox, got, abts.String())
		}
	}
	if x, _, err := fc.ParseBARjt(rjt.Payload); err != nil || x.Reason != fc.BARjtLogical ||
		x.Explanation != fc.BARjtInvalidID {
		t.Errorf("%+v, %v", x, err)
	}
}

// TestFCFS_2_9 checks class 2. [FCFS-2.9-2] [FCFS-2.9-3] [FCFS-2.9-4]
func TestFCFS_2_9(t *testing.T) {
	n, a, b := online(t, true, nil)
	r := a.login(t, n, b.ID())
	var data, ack fc.Frame
	unacked, most := 0, 0
	n.Tap(func(_ fc.Time, e *fabric.End, f *fc.Frame) {
		if !e.Faulty {
			return
		}
		switch {
		case f.Type == fc.TypeFCVI:
			data = *f
			unacked++
			most = max(most, unacked)
		case f.RCtl == fc.RCtlACK1:
			ack = *f
			unacked--
		}
	})
	for i := range 100 {
		a.sendText(n, r, fc.Class2, uint16(i), "x")
	}
	n.Run(time.Second)
	if len(b.data) != 100 || a.acked != 100 || most > 33 {
		t.Errorf("%d delivered, %d acknowledged, at most %d under way", len(b.data), a.acked, most)
	}
	if ack.DID != data.SID || ack.SID != data.DID || ack.OXID != data.OXID || ack.SeqID != data.SeqID ||
		ack.SeqCnt != data.SeqCnt || ack.Param != 1 ||
		ack.EOF != fc.EOFt || ack.FCtl&(fc.FCtlExchResponder|fc.FCtlSeqRecipient) != fc.FCtlExchResponder|fc.FCtlSeqRecipient {
		t.Errorf("%v acknowledges %v", ack.String(), data.String())
	}
	// A frame whose ACK is lost is sent again. If no ACK ever arrives, the frame fails.
	lost := n.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { return f.RCtl == fc.RCtlACK1 },
		Do: fabric.Drop, Nth: 1})
	a.acked = 0
	a.sendText(n, r, fc.Class2, 200, "x")
	n.Run(fc.DefaultEDTOV + time.Second)
	if len(a.failed) != 0 || a.acked != 1 || data.FCtl&fc.FCtlRetransmitted == 0 || a.Stats().Resent != 1 {
		t.Errorf("failed %v, acknowledged %d, %v", a.failed, a.acked, data.String())
	}
	lost.Nth = 0
	a.sendText(n, r, fc.Class2, 201, "x")
	if n.Run(a.RecoveryTime() - time.Second); len(a.failed) != 0 {
		t.Errorf("failed early: %v", a.failed)
	}
	if n.Run(2 * time.Second); len(a.failed) != 1 || a.failed[0] != fc.FailTimeout {
		t.Errorf("failed %v", a.failed)
	}
	n.ClearFaults()
	// A frame to a busy port is sent up to eight times. [FCVI-8.4-15]
	for tries, want := range map[int]int{8: 0, 9: 1} {
		a.failed, a.acked = nil, 0
		busy := *a.Remote(b.ID())
		n.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { return f.RCtl == fc.RCtlACK1 }, Do: fabric.Drop})
		a.sendText(n, r, fc.Class2, 202, "x")
		for i := range tries {
			n.Run(time.Millisecond)
			if i == tries-1 {
				n.ClearFaults()
			}
			bsy := fc.Frame{SOF: fc.SOFn2, EOF: fc.EOFt,
				Header: fc.Header{RCtl: fc.RCtlPBSY, DID: a.ID(), SID: busy.Addr, Type: fc.TypeBLS,
					FCtl: data.FCtl ^ fc.FCtlExchResponder, SeqID: data.SeqID, SeqCnt: data.SeqCnt, OXID: data.OXID}}
			a.Receive(n.Now(), &bsy)
			n.Run(fc.DefaultEDTOV / 8)
		}
		n.Run(time.Second)
		if len(a.failed) != want || a.acked != 1-want {
			t.Errorf("busy %d times: failed %v, acknowledged %d", tries, a.failed, a.acked)
		}
	}
	// A frame to an unknown port is answered by F_RJT with the reason. A frame to a port without a
	// login is answered by P_RJT.
	b.Logout(n.Now(), b.Remote(a.ID()))
	a.failed = nil
	a.sendText(n, r, fc.Class2, 203, "x")
	n.Run(time.Millisecond)
	if len(a.failed) > 0 && a.failed[0] != fc.RejectLogin {
		t.Errorf("failed %v", a.failed)
	}
}

// TestFCFS_2_11: the directory refuses forbidden requests. [FCFS-2.11-2] [FCVI-7.6-5] [FCVI-7.6-2]
func TestFCFS_2_11(t *testing.T) {
	n, a, b := online(t, false, nil)
	ask := func(cmd fc.CTCmd, body []byte) (reply []byte, err error) {
		a.Query(n.Now(), cmd, body, func(_ fc.Time, r []byte, e error) { reply, err = append([]byte{}, r...), e })
		n.Run(time.Second)
		return
	}
	rejected := func(cmd fc.CTCmd, body []byte, reason, explanation uint8) {
		t.Helper()
		_, err := ask(cmd, body)
		if e, ok := err.(*fc.CTError); !ok || e.Reason != reason || e.Explanation != explanation || e.Cmd != cmd {
			t.Errorf("%v: %v", cmd, err)
		}
	}
	rejected(0x0999, nil, fc.CTRsnUnsupported, 0)
	rejected(fc.NSGIDPN, fc.NSBody{}.Name(99), fc.CTRsnUnable, fc.CTExpPortName)
	rejected(fc.NSGIDPN, []byte{1, 2}, fc.CTRsnLogical, 0)
	// A port may not register another port.
	rejected(fc.NSRPNID, fc.NSBody{}.ID(b.ID()).Name(a.Name()), fc.CTRsnUnable, fc.CTExpPortID)
	rejected(fc.NSGPNID, fc.NSBody{}.ID(0x010999), fc.CTRsnUnable, fc.CTExpPortID)
	ip := b.IPForms()[0]
	for cmd, q := range map[fc.CTCmd]struct{ body, want []byte }{
		fc.NSGPNID:  {fc.NSBody{}.ID(b.ID()), fc.NSBody{}.Name(b.Name())},
		fc.NSGNNID:  {fc.NSBody{}.ID(b.ID()), fc.NSBody{}.Name(b.Node())},
		fc.NSGIPPID: {fc.NSBody{}.ID(b.ID()), ip[:]},
		fc.NSGNNIP:  {ip[:], fc.NSBody{}.Name(b.Node())},
		fc.NSGIDNN:  {fc.NSBody{}.Name(b.Node()), []byte{0x80, 1, 2, 0}},
		fc.NSGIDPN:  {fc.NSBody{}.Name(b.Name()), []byte{0, 1, 2, 0}},
		fc.NSGIDIPP: {ip[:], []byte{0x80, 1, 2, 0}},
		fc.NSGIDFT:  {[]byte{0, 0, 0, byte(fc.TypeFCVI)}, []byte{0, 1, 1, 0, 0x80, 1, 2, 0}},
	} {
		if got, err := ask(cmd, q.body); err != nil || string(got) != string(q.want) {
			t.Errorf("%v: %x, %v; want %x", cmd, got, err, q.want)
		}
	}
}

// TestDirectoryLogin: the directory answers only ports logged in with it, and sends others a LOGO.
// [FCFS-2.11-3]
func TestDirectoryLogin(t *testing.T) {
	n, a, b := online(t, false, nil)
	var told, answers int
	n.Tap(func(_ fc.Time, _ *fabric.End, f *fc.Frame) {
		switch {
		case f.SID != fc.AddrDirectory:
		case f.Type == fc.TypeCT:
			answers++
		case f.RCtl == fc.RCtlELSReq && fc.CmdOf(f.Payload) == fc.ELSLOGO:
			told++
		}
	})
	ask := func() (err error) {
		err = fc.ErrTimeout
		a.Query(n.Now(), fc.NSGPNID, fc.NSBody{}.ID(b.ID()), func(_ fc.Time, _ []byte, e error) { err = e })
		n.Run(time.Second)
		return err
	}
	if err := ask(); err != nil || answers == 0 || told != 0 {
		t.Fatalf("logged in: %v, %d answers, told %d times", err, answers, told)
	}
	// The LOGO is sent without the port's knowledge, so that the port still considers itself logged
	// in.
	if _, err := a.els(n, fc.AddrDirectory, fc.LOGO{ID: a.ID(), PortName: a.Name()}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	answers = 0
	if err := ask(); err == nil || answers != 0 || told == 0 {
		t.Errorf("after LOGO: %v, %d answers, told %d times", err, answers, told)
	}
	if err := ask(); err != nil || answers == 0 { // the port logs in again
		t.Errorf("again: %v, %d answers", err, answers)
	}
}

// TestFARPRules: the flags decide whether a port answers a FARP-REQ by a FARP-REPLY, a PLOGI, both
// or neither. The port needs no login, answers a duplicated request once, and stays silent if the
// request describes another port. [FCVI-7.5-4] [FCVI-7.5-6] [FCVI-7.5-7] [FCVI-7.5-8]
func TestFARPRules(t *testing.T) {
	for flags := range uint8(4) {
		n, a, b := online(t, false, nil)
		var req, rep fc.Frame
		reqs, reps, plogis := 0, 0, 0
		n.Tap(func(_ fc.Time, e *fabric.End, f *fc.Frame) {
			if !e.Faulty || f.Type != fc.TypeELS {
				return
			}
			switch fc.CmdOf(f.Payload) {
			case fc.ELSFARPReq:
				req = *f
				reqs++
			case fc.ELSFARPReply:
				rep = *f
				reps++
			case fc.ELSPLOGI:
				plogis++
			}
		})
		n.AddFault(&fabric.Fault{Match: fabric.ELSOf(fc.ELSFARPReq), Do: fabric.Duplicate, Nth: 1})
		found := 0
		a.FARP(n.Now(), fc.FARPMatchIP, fc.FARP{RespIP: b.IPForms()[0]}, flags, func(_ fc.Time, _ fc.FARP, err error) {
			if err == nil {
				found++
			}
		})
		n.Run(time.Second)
		reply, login := int(flags>>1), int(flags&1)
		if found != reply || reps != reply || plogis != login {
			t.Errorf("flags %d: found %d, %d replies, %d PLOGI", flags, found, reps, plogis)
		}
		if req.FCtl != 0x380000 || req.DID != fc.AddrBroadcast || reps > 0 && rep.FCtl != 0x290000 {
			t.Errorf("F_CTL %06x, %06x", uint32(req.FCtl), uint32(rep.FCtl))
		}
		if b.Remote(a.ID()) != nil != (login == 1) {
			t.Errorf("flags %d: logged in", flags)
		}
	}
	n, a, _ := online(t, false, nil)
	answers := 0
	n.Tap(func(_ fc.Time, e *fabric.End, f *fc.Frame) {
		if e.Faulty && (f.RCtl == fc.RCtlELSReply || fc.CmdOf(f.Payload) == fc.ELSFARPReply) {
			answers++
		}
	})
	var err error
	a.FARP(n.Now(), fc.FARPMatchIP, fc.FARP{RespIP: [16]byte{9}}, 3, func(_ fc.Time, _ fc.FARP, e error) { err = e })
	n.Run(time.Minute)
	if answers != 0 || err != fc.ErrNoMatch { // [FCVI-7.5-5]
		t.Errorf("%d answers, %v", answers, err)
	}
}

// TestPublicLoop: after a LIP logins stay valid if a FAN arrives, or if FLOGI has the same result
// as before. Another AL_PA ends the logins. [FCVI-7.7-4]
func TestPublicLoop(t *testing.T) {
	for _, moved := range []bool{false, true} {
		n := fabric.NewNet(1)
		a, mka := newPort(1, false)
		b, mkb := newPort(2, false)
		ends := n.Loop(newSwitch(1), mka, mkb)
		n.Start()
		n.RunUntil(3*time.Minute, func() bool { return a.State() == fc.Online && b.State() == fc.Online })
		a.login(t, n, b.ID())
		fans := 0
		n.Tap(func(_ fc.Time, _ *fabric.End, f *fc.Frame) {
			if f.Type == fc.TypeELS && fc.CmdOf(f.Payload) == fc.ELSFAN {
				fans++
			}
		})
		if moved {
			ends[0].SetALPA(0x25)
		}
		n.Initialize(ends[0])
		n.Run(2 * time.Minute)
		if fans == 0 || a.State() != fc.Online || moved != (len(a.out) > 0) || moved == (len(a.resumed) > 0) {
			t.Errorf("moved %v: %d FAN, state %v, logged out %v, resumed %v", moved, fans, a.State(), a.out, a.resumed)
		}
	}
}

// TestCredit: if all credit of a link end is in transit, the end has no room. The Net notifies the
// device when there is room again. [FCFS-2.9-1]
func TestCredit(t *testing.T) {
	n, a, b := online(t, false, nil)
	r := a.login(t, n, b.ID())
	var end *fabric.End
	n.Tap(func(_ fc.Time, e *fabric.End, f *fc.Frame) {
		if f.SID == a.ID() && e.Faulty {
			end = e
		}
	})
	sent := 0
	a.sendText(n, r, fc.Class3, 1, "x")
	n.Run(time.Millisecond)
	for end.Room() {
		a.sendText(n, r, fc.Class3, 1, "x")
		sent++
	}
	if sent != fabric.DefaultCredit {
		t.Errorf("%d frames under way", sent)
	}
	n.Run(time.Millisecond)
	if !end.Room() || len(b.data) != sent+1 {
		t.Errorf("delivered %d", len(b.data))
	}
}

// TestClassNotOffered: a class 2 frame to a port without class 2 is rejected. [FCVI-6.1-1]
func TestClassNotOffered(t *testing.T) {
	n, a, b := switched(true)
	r := a.login(t, n, b.ID())
	a.sendText(n, r, fc.Class2, 1, "x")
	n.Run(time.Second)
	if r.Class2 || len(b.data) != 0 || len(a.failed) != 1 || a.failed[0] != fc.RejectClass {
		t.Errorf("class 2 %v, delivered %q, failed %v", r.Class2, b.data, a.failed)
	}
}

// A gate is a device that can stop receiving and sending, like a host switched off.
type gate struct {
	fabric.Device
	out fc.Sender
	off bool
}

func (g *gate) Send(f *fc.Frame) {
	if !g.off {
		g.out.Send(f)
	}
}

func (g *gate) Receive(now fc.Time, f *fc.Frame) {
	if !g.off {
		g.Device.Receive(now, f)
	}
}

// TestSwitchRestart: after the restart of a switch, queries are no longer answered from
// announcements of its former run. This holds even if no neighbour has detected the restart, and
// even if the switch has another name. [FCFS-3.2-5]
func TestSwitchRestart(t *testing.T) {
	for _, c := range []struct {
		name           string
		renamed, quiet bool
	}{{"renamed", true, false}, {"same name", false, false}, {"unnoticed", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			n := fabric.NewNet(1)
			s1, s2 := newSwitch(1), newSwitch(2)
			var g *gate
			link, _ := n.Connect(func(out fc.Sender) fabric.Device {
				g = &gate{out: out}
				g.Device = s1.NewISL(g)
				return g
			}, func(out fc.Sender) fabric.Device { return s2.NewPort(out) })
			a, mkA := newPort(1, false)
			n.Attach(s2, mkA)
			_, other := newPort(3, false)
			n.Attach(s1, other)
			b, mkB := newPort(2, false)
			n.Attach(s1, mkB)
			n.Start()
			find := func() (ids []fc.Addr) {
				n.Run(time.Second)
				a.Query(n.Now(), fc.NSGIDIPP, b.IPForms()[0][:], func(_ fc.Time, r []byte, err error) {
					if err == nil {
						err = fc.ParseIDList(r, func(id fc.Addr) { ids = append(ids, id) })
					}
					if err != nil {
						t.Error(err)
					}
				})
				n.Run(time.Second)
				return ids
			}
			if ids := find(); len(ids) != 1 || ids[0] != 0x010200 || b.ID() != ids[0] {
				t.Fatalf("%v, %v", ids, b.ID())
			}
			g.off = true
			if !c.quiet {
				n.SetLink(link, false)
			}
			cfg := fabric.SwitchConfig{Name: s1.Name(), Domain: 1, Epoch: 1}
			if c.renamed {
				cfg.Name += 0x100
			}
			s1 = fabric.NewSwitch(cfg)
			p, q := n.Connect(func(out fc.Sender) fabric.Device { return s1.NewISL(out) },
				func(out fc.Sender) fabric.Device { return s2.NewPort(out) })
			b, mkB = newPort(2, false) // gets the address that the other port had before
			n.BringUp(n.Attach(s1, mkB))
			n.BringUp(p)
			n.BringUp(q)
			if ids := find(); len(ids) != 1 || ids[0] != b.ID() || b.ID() != 0x010100 {
				t.Errorf("found at %v, is at %v", ids, b.ID())
			}
		})
	}
}

// TestDamaged: the CRC detects a frame damaged on the way, and the frame is not delivered.
// [FCFS-2.1-6]
func TestDamaged(t *testing.T) {
	n, a, b := online(t, false, nil)
	r := a.login(t, n, b.ID())
	n.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { return f.Type == fc.TypeFCVI },
		Do: fabric.Corrupt, Nth: 2})
	for _, text := range []string{"one", "two", "three"} {
		a.sendText(n, r, fc.Class3, 1, text)
	}
	n.Run(time.Second)
	if s := n.Stats(); !slices.Equal(b.data, []string{"one", "three"}) || s.Corrupted != 1 || s.BadCRC != 1 {
		t.Errorf("delivered %q, %+v", b.data, s)
	}
}

// TestMovedPort: a port that logs in at another switch port is removed from the former one.
// [FCFS-3.2-6]
func TestMovedPort(t *testing.T) {
	n, sw := fabric.NewNet(1), newSwitch(1)
	a, mkA := newPort(1, false)
	b, mkB := newPort(2, false)
	n.Attach(sw, mkA)
	n.Attach(sw, mkB)
	n.Start()
	n.Run(time.Second)
	old := b.ID()
	again, mk := newPort(2, false) // another device with the same names and address
	n.BringUp(n.Attach(sw, mk))
	n.Run(time.Second)
	if again.State() != fc.Online || again.ID() == old {
		t.Fatalf("%v at %v", again.State(), again.ID())
	}
	var ids []fc.Addr
	a.Query(n.Now(), fc.NSGIDIPP, again.IPForms()[0][:], func(_ fc.Time, r []byte, err error) {
		if err == nil {
			err = fc.ParseIDList(r, func(id fc.Addr) { ids = append(ids, id) })
		}
		if err != nil {
			t.Error(err)
		}
	})
	n.Run(time.Second)
	if len(ids) != 1 || ids[0] != again.ID() {
		t.Errorf("found at %v, is at %v", ids, again.ID())
	}
}

// TestClass2Again checks when, and how often, a class 2 frame is sent again. [FCVI-8.4-15]
func TestClass2Again(t *testing.T) {
	n, a, b := online(t, true, nil)
	r := a.login(t, n, b.ID())
	var at []fc.Time
	var last fc.Frame
	n.Tap(func(now fc.Time, e *fabric.End, f *fc.Frame) {
		if e.Faulty && f.Type == fc.TypeFCVI && f.SID == a.ID() {
			at, last = append(at, now), *f
		}
	})
	n.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { return f.RCtl == fc.RCtlACK1 }, Do: fabric.Drop})
	want := func(name string, pauses ...time.Duration) {
		t.Helper()
		if len(at) != len(pauses)+1 || len(a.failed) != 1 {
			t.Fatalf("%s: sent at %v, failed %v", name, at, a.failed)
		}
		for i, p := range pauses {
			if got := at[i+1] - at[i]; got < p || got > p+5*time.Millisecond {
				t.Errorf("%s: again after %v, want %v", name, got, p)
			}
		}
		at, a.failed = nil, nil
	}
	const edtov = fc.DefaultEDTOV
	a.sendText(n, r, fc.Class2, 1, "x")
	n.Run(time.Minute)
	want("no ACK", edtov, edtov, edtov, edtov, edtov, edtov, edtov) // seven times

	a.sendText(n, r, fc.Class2, 2, "x")
	for range 9 {
		n.Run(time.Millisecond)
		bsy := fc.Frame{SOF: fc.SOFn2, EOF: fc.EOFt,
			Header: fc.Header{RCtl: fc.RCtlPBSY, DID: a.ID(), SID: b.ID(), Type: fc.TypeBLS,
				FCtl: last.FCtl ^ fc.FCtlExchResponder, SeqID: last.SeqID, SeqCnt: last.SeqCnt, OXID: last.OXID}}
		a.Receive(n.Now(), &bsy)
		n.Run(edtov / 8)
	}
	n.Run(time.Minute)
	busy := edtov / 8
	want("busy", busy, busy, busy, busy, busy, busy, busy, busy) // eight times
}

// TestLoginSize: ports and fabric reject a login with an invalid receive data field size.
// [FCFS-2.7-2]
func TestLoginSize(t *testing.T) {
	n, a, b := online(t, false, nil)
	for _, size := range []uint16{0, 252, 255, 258, 2116, 4092} {
		for to, cmd := range map[fc.Addr]fc.ELSCmd{b.ID(): fc.ELSPLOGI, fc.AddrDirectory: fc.ELSPLOGI, fc.AddrFPort: fc.ELSFLOGI} {
			l := fc.Login{Cmd: cmd, VersionHigh: 0x20, VersionLow: 0x20, PortName: a.Name(),
				NodeName: a.Node(), RxSize: size}
			_, err := a.els(n, to, l.Append(nil))
			if _, rejected := err.(fc.LSRjt); !rejected {
				t.Errorf("%v of %d bytes to %v: %v", cmd, size, to, err)
			}
		}
	}
	for _, size := range []uint16{256, 2112} {
		l := fc.Login{Cmd: fc.ELSPLOGI, VersionHigh: 0x20, VersionLow: 0x20, PortName: a.Name(),
			NodeName: a.Node(), RxSize: size}
		if _, err := a.els(n, b.ID(), l.Append(nil)); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
