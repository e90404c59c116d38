package fcvi

import (
	"errors"
	"slices"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// TestULPTimeout: a configured timeout is used, but is at least twice R_A_TOV. The default timeout
// shrinks with R_A_TOV. [FCVI-8.3-2] [FCVI-8.3-5]
func TestULPTimeout(t *testing.T) {
	for _, v := range []struct{ set, ratov, want time.Duration }{
		{0, fc.DefaultRATOV, defaultULPTimeout},
		{50 * time.Second, fc.DefaultRATOV, 50 * time.Second},
		{time.Second, fc.DefaultRATOV, 2 * fc.DefaultRATOV},
		{0, time.Second, 3 * time.Second},
		{0, fc.DefaultRATOV - 1, 3 * (fc.DefaultRATOV - 1)},
		{7 * time.Second, time.Second, 7 * time.Second},
		{0, fc.DefaultRATOV * 2, 4 * fc.DefaultRATOV},
	} {
		np := fc.NewNPort(fc.PortConfig{PortName: fc.PortName(1, 1), NodeName: fc.NodeName(1), RATOV: v.ratov, EDTOV: min(v.ratov/4, fc.DefaultEDTOV)}, sink{})
		p := newPort(np, machineConfig{ulpTimeout: v.set}, func(fc.Addr) int { return 1 })
		if got := p.ulpTimeout(); got != v.want {
			t.Errorf("%v set, R_A_TOV %v: %v, want %v", v.set, v.ratov, got, v.want)
		}
	}
}

// A sink is a receive-only link.
type sink struct{}

func (sink) Send(*fc.Frame) {}

// TestClassFor: class 2 is used between two ports with class 2 support. [FCVI-5.2.1-11]
func TestClassFor(t *testing.T) {
	for _, ours := range []fc.Class{fc.Class2, fc.Class3} {
		for _, theirs := range []bool{false, true} {
			p := &port{cfg: machineConfig{class: ours}}
			want := fc.Class3
			if ours == fc.Class2 && theirs {
				want = fc.Class2
			}
			if got := p.classFor(&fc.Remote{Class2: theirs}); got != want {
				t.Errorf("ours %v, theirs %v: %v", ours, theirs, got)
			}
		}
	}
}

// TestStreamExchange: a message shares an Exchange with the previous message if at most half of
// E_D_TOV lies between the two. The id of an ended Exchange is not released a second time. Without
// a free id no frame is sent. [FCVI-5.2.1-1] [FCVI-5.2.1-4] [FCVI-5.2.1-7]
func TestStreamExchange(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, stream: true})
	a, _ := s.connect(iu.ReliableDelivery)
	c, tx := a.c, &a.c.tx
	half := c.p.np.EDTOV() / 2
	at := s.net.Now()
	place := func(now fc.Time) uint16 {
		t.Helper()
		if !c.tx.exchange(now, &iu.Header{Op: iu.SendRqst}) {
			t.Fatal("no Exchange")
		}
		return tx.oxid
	}
	first := place(at)
	if ox := place(at + half); ox != first || tx.use.Stream != iu.StreamNext {
		t.Errorf("at half of E_D_TOV: Exchange %#x, was %#x", ox, first)
	}
	second := place(at + 2*half + 1)
	if second == first || tx.use.Stream != iu.StreamFirst || c.p.oxids.owner(first) != nil ||
		c.p.oxids.owner(second) != c {
		t.Errorf("beyond it: Exchange %#x, was %#x", second, first)
	}
	// The Exchange has ended, and another Exchange uses the id.
	tx.stream.open = false
	if third := place(at + 10*half); third == second || c.p.oxids.owner(second) != c {
		t.Errorf("the id of an Exchange that is over was given back: %#x, %#x", third, second)
	}
	for ok := true; ok; {
		_, ok = c.p.oxids.alloc(nil)
	}
	tx.stream.open = false
	if c.tx.exchange(at+10*half, &iu.Header{Op: iu.SendRqst}) || tx.stream.open {
		t.Error("an Exchange where there is no id left")
	}
	if c.tx.exchange(at, &iu.Header{Op: iu.ReadRqst}) {
		t.Error("an Exchange for a Read where there is no id left")
	}
}

// TestLongDeadline: a deadline too long for the field becomes the longest possible time.
// [FCVI-5.3.2-1] [FCVI-5.3.2-3]
func TestLongDeadline(t *testing.T) {
	for wait, want := range map[time.Duration]uint32{time.Minute: 60_000, 100 * 24 * time.Hour: iu.NoTimeout - 1} {
		s := newSim(t, simConfig{seed: 1, order: true})
		s.connect(iu.ReliableDelivery) // logs in
		all := s.record()
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		s.serve(b, "x")
		a.c = a.p.connect(s.net.Now(), connectArgs{mode: iu.ClientServer, local: a.net("me"),
			remote: b.net("x"), attrs: a.attrs(),
			deadline: s.net.Now() + wait, up: a, done: a.result1})
		s.net.Run(time.Second)
		q, _, err := iu.ParseConnectRqst((*all)[0].data)
		if err != nil || q.Timeout != want || len(a.result) != 1 || a.result[0] != iu.Confirmed {
			t.Errorf("%v: asked for %d ms, %v, %v", wait, q.Timeout, err, a.result)
		}
	}
}

// TestAbortedExchange: the id of an aborted Exchange is free R_A_TOV after the answer. The Recovery
// Qualifier is released if the peer accepted the ABTS. Of the IUs kept for ports under
// verification, only the Exchange's IUs are dropped. [FCVI-5.4-4]
func TestAbortedExchange(t *testing.T) {
	for _, accepted := range []bool{true, false} {
		s := newSim(t, simConfig{seed: 1})
		a, b := s.connect(iu.ReliableDelivery)
		p, r := a.p, a.c.remote
		released, asked := 0, 0
		s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
			if from == p.end && f.RCtl == fc.RCtlABTS {
				asked++
			}
			if from == p.end && f.Type == fc.TypeELS && fc.CmdOf(f.Payload) == fc.ELSRRQ {
				released++
			}
		})
		if !accepted {
			s.net.AddFault(&fabric.Fault{Do: fabric.Drop,
				Match: func(f *fc.Frame) bool { return f.RCtl == fc.RCtlBAAcc || f.RCtl == fc.RCtlBARjt }})
		}
		// The peer has an incomplete message of this Exchange.
		b.postRecv(5000)
		ox := uint16(p.oxids.next)
		s.net.AddFault(&fabric.Fault{Do: fabric.Drop,
			Match: func(f *fc.Frame) bool { return opcode(iu.SendRqst)(f) && f.Last() }})
		a.post(vi.OpSendReceive, pattern(5000, 1))
		s.net.Run(time.Millisecond)
		other, _ := p.oxids.alloc(a.c)
		for _, id := range []uint16{ox, other} {
			p.keep(r, fc.Class3, p.frame(0, 0, 0))
			p.kept[len(p.kept)-1].f.OXID = id
		}
		p.keep(r, fc.Class3, p.frame(0, 0, fc.FCtlExchResponder)) // an answer on an Exchange of the peer
		p.kept[2].f.OXID = ox
		p.oxids.abort(s.net.Now(), r, fc.Class3, ox, 0x55)
		if len(p.kept) != 2 || p.kept[0].f.OXID != other || !p.kept[1].f.FromResponder() {
			t.Errorf("%d frames are kept", len(p.kept))
		}
		p.kept = nil
		s.net.Run(p.np.RATOV() / 2)
		if x := p.oxids.at(ox); !x.used || x.owner != nil || released != 0 {
			t.Errorf("accepted %v: before R_A_TOV: %+v, released %d times", accepted, x, released)
		}
		s.net.Run(10 * time.Minute)
		if x := p.oxids.at(ox); x.used || asked == 0 || (released > 0) != accepted {
			t.Errorf("accepted %v: after R_A_TOV: %+v, %d ABTS, released %d times", accepted, x, asked, released)
		}
	}
}

// TestAnsweredTooSoon: a response to a message still being sent is ignored. [FCVI-5.2.5-2]
func TestAnsweredTooSoon(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableReception)
	all := s.record()
	b.postRecv(1 << 20)
	a.post(vi.OpSendReceive, pattern(1<<20, 1))
	if !s.net.RunUntil(time.Second, func() bool { return a.c.tx.busy && a.c.tx.off > 0 }) {
		t.Fatal("nothing is being sent")
	}
	id := a.c.tx.curID
	f := fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Header: fc.Header{OXID: a.c.tx.oxid, RXID: 0x1234}}
	a.c.tx.resp.pending.push(pending{id: id - 1, end: -1})
	a.c.response(s.net.Now(), &f, &iu.Header{Op: iu.SendResp, MsgID: id})
	s.net.Run(time.Second)
	if r, h := firstDisconnect(*all); r != iu.UnexpectedResp || h.MsgID != id || a.broke != 1 {
		t.Errorf("%v, %v; broken %d", r, h, a.broke)
	}
}

// TestDisconnectTells: a disconnect with an error and a message id fails that message, and
// completes the messages before it with success. A disconnect without a message id or without an
// error concerns no message. [FCVI-5.3.5-2] [FCVI-5.3.5-6] [FCVI-E-4]
func TestDisconnectTells(t *testing.T) {
	for _, v := range []struct {
		name   string
		flags  iu.Flags
		reason iu.Reason
		at     iu.MsgID // message id, relative to the oldest message
		done   []vi.Status
		order  bool
	}{
		{"an error of a probe", iu.FlagErr | iu.FlagMsgID, iu.NoRecvDesc, 0, nil, false},
		{"an error of the second", iu.FlagErr | iu.FlagMsgID, iu.NoRecvDesc, 1, []vi.Status{0, vi.StatusRemoteDescriptor}, true},
		{"an error of the oldest", iu.FlagErr | iu.FlagMsgID, iu.NoRecvDesc, 0, []vi.Status{vi.StatusRemoteDescriptor}, true},
		{"a loss", iu.FlagErr | iu.FlagMsgID, iu.MsgLost, 1, nil, false},
		{"an error of none", iu.FlagErr, iu.NoRecvDesc, 1, nil, false},
		{"no error", iu.FlagMsgID, iu.NoRecvDesc, 1, nil, true},
		{"nothing", 0, iu.ULPDisconnect, 1, nil, true},
		{"an error of a message before", iu.FlagErr | iu.FlagMsgID, iu.NoRecvDesc, ^iu.MsgID(0), nil, false},
	} {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.connect(iu.ReliableReception)
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.SendResp), Do: fabric.Drop})
		for range 3 {
			b.postRecv(10)
			a.post(vi.OpSendReceive, []byte("x"))
		}
		s.net.Run(time.Millisecond)
		a.c.tx.resp.pending.at(0).probe = v.name == "an error of a probe" // a request that no consumer has posted
		h := iu.Header{Op: iu.DisconnectRqst, Handle: a.c.handle, RmtHandle: b.c.handle,
			Total: a.c.own.id, Flags: v.flags,
			MsgID: a.c.tx.resp.pending.at(0).id + v.at, Param: iu.Status{Reason: v.reason}.Param()}
		s.inject(1, h, nil, func(f *fc.Frame) { f.FCtl = 0x290000 })
		var done []vi.Status
		for _, w := range a.sends {
			if w.done {
				done = append(done, w.status)
			}
		}
		if !slices.Equal(done, v.done) || a.broke != 1 || a.order != v.order {
			t.Errorf("%s: ended with %v, orderly %v", v.name, done, a.order)
		}
	}
}

// TestClass2Completes: in class 2 a message without a response completes with the last ACK, and not
// before. [FCVI-5.2.2-1]
func TestClass2Completes(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, class: fc.Class2, class2: true})
	a, b := s.connect(iu.ReliableDelivery)
	b.postRecv(9000)
	acks, last := 0, 0
	var w *fakeSend
	s.net.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool {
		if f.RCtl == fc.RCtlACK1 && f.DID == a.p.np.ID() && w != nil {
			if acks++; w.done {
				last = acks
			}
		}
		return false
	}})
	w = a.post(vi.OpSendReceive, pattern(9000, 1)) // five frames
	if w.done {
		t.Error("complete before an ACK came")
	}
	s.net.Run(time.Second)
	if !w.done || w.status != 0 || acks < 5 || last != 0 || a.c.tx.acks.len() != 0 {
		t.Errorf("done %v, %v with %d ACKs, before the one numbered %d; %d awaited", w.done,
			w.status, acks, last, a.c.tx.acks.len())
	}
}

// TestLinkRoom: a connection without room on the link continues once there is room. [FCFS-2.9-1]
func TestLinkRoom(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableDelivery)
	r := b.postRecv(10)
	room := a.p.room
	a.p.room = func(fc.Addr) int { return 0 }
	w := a.post(vi.OpSendReceive, []byte("x"))
	s.net.Run(100 * time.Millisecond)
	if w.done || r.done {
		t.Error("sent without room")
	}
	a.p.room = room
	a.p.linkRoom(s.net.Now())
	s.net.Run(100 * time.Millisecond)
	if !w.done || !r.done {
		t.Errorf("sent %v, received %v with room", w.done, r.done)
	}
}

// TestMatches: a peer request matches if the addresses of both requests are the reverse of each
// other. An unspecified host of this side matches each of its addresses. [FCVI-5.3.3-4]
func TestMatches(t *testing.T) {
	x, y := iu.IPAddress(addrOf(1), []byte("d")), iu.IPAddress(addrOf(2), []byte("e"))
	other := iu.IPAddress(addrOf(3), []byte("d"))
	anyHost := iu.NetAddress{Discriminator: []byte("d")}
	for _, v := range []struct {
		mode            iu.Mode
		local, want     iu.NetAddress
		called, calling iu.NetAddress
		match           bool
	}{
		{iu.PeerToPeer, x, y, x, y, true},
		{iu.ClientServer, x, y, x, y, false},
		{iu.PeerToPeer, x, y, other, y, false},
		{iu.PeerToPeer, x, y, x, other, false},
		{iu.PeerToPeer, anyHost, y, other, y, true},
		{iu.PeerToPeer, anyHost, y, iu.IPAddress(addrOf(1), []byte("x")), y, false},
	} {
		c := &terms{mode: v.mode, local: v.local, want: v.want}
		if got := c.matches(v.called, v.calling); got != v.match {
			t.Errorf("%v, %v to %v, called as %v by %v: %v", v.mode, v.local, v.want, v.called, v.calling, got)
		}
	}
}

// TestLingering: a lingering request goes to the first waiter, and to no other. [FCVI-5.3.2-6]
func TestLingering(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, linger: time.Minute})
	a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
	s.dial(a, b, "late", iu.ClientServer)
	s.net.Run(time.Second)
	given := 0
	for range 2 {
		b.p.addWait(s.net.Now(), &wait{disc: []byte("late"), match: func(c *conn) { given, b.c = given+1, c }})
	}
	if given != 1 || b.c.claim != taken || len(b.p.waits) != 1 {
		t.Fatalf("given %d times, claim %v", given, b.c.claim)
	}
	s.net.Run(10 * time.Minute) // longer than any time limit for a decision
	if len(a.result) != 1 || a.result[0] != iu.ULPTimeout {
		t.Errorf("%v", a.result)
	}
}

// TestDraining: a connection waiting for the last answers starts no message. [FCVI-F-2]
func TestDraining(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, _ := s.connect(iu.ReliableReception)
	a.c.tx.draining = true
	a.sends = append(a.sends, &fakeSend{ctl: vi.OpSendReceive})
	if ok, _ := a.c.tx.startMessage(s.net.Now()); ok || a.next1 != 0 {
		t.Error("a message begins")
	}
	a.c.tx.draining = false
	a.c.attrs.Reliability = iu.Unreliable // at this level a bad descriptor does not end the connection
	a.sends = append([]*fakeSend{{ctl: vi.OpSendReceive, bad: true}}, a.sends...)
	if ok, _ := a.c.tx.startMessage(s.net.Now()); !ok || a.next1 != 2 || a.sends[0].status != vi.StatusLengthError || a.sends[1].done {
		t.Error("no message begins")
	}
}

// TestBadReceive: an unusable receive descriptor completes with its error, and the error is
// reported to the peer. [FCVI-3-8] [FCVI-5.2.2-6] [FCVI-5.2.2-7] [FCVI-5.2.2-8]
func TestBadReceive(t *testing.T) {
	for bad, want := range map[vi.Status]iu.Reason{
		vi.StatusProtectionError: iu.RecvProt, vi.StatusFormatError: iu.RecvFormat,
		vi.StatusFormatError | vi.StatusProtectionError: iu.RecvFormat,
	} {
		for _, level := range levels {
			s := newSim(t, simConfig{seed: 1, order: true})
			a, b := s.connect(level)
			all := s.record()
			b.postRecv(10).bad = bad
			b.postRecv(10)
			w := a.post(vi.OpSendReceive, []byte("x"))
			s.net.Run(time.Second)
			if r := b.recvs[0]; !r.done || r.d.Status != bad || r.d.Length != 0 {
				t.Errorf("%v, %v: the receive ends with %+v", level, bad, r.d)
			}
			op := map[iu.Reliability]iu.Opcode{iu.ReliableReception: iu.SendResp, iu.ReliableDelivery: iu.DisconnectRqst}[level]
			i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op != iu.SendRqst })
			switch {
			case level == iu.Unreliable:
				if i >= 0 || b.broke != 0 {
					t.Errorf("%v, %v: told %s, broken %d", level, bad, ops(*all), b.broke)
				}
				a.post(vi.OpSendReceive, []byte("y"))
				s.net.Run(time.Second)
				if r := b.recvs[1]; !r.done || r.buf[0] != 'y' {
					t.Errorf("%v, %v: the next message does not come", level, bad)
				}
			case i < 0 || (*all)[i].h.Op != op || (*all)[i].h.Flags&iu.FlagErr == 0 ||
				(*all)[i].h.Status().Reason != want || (*all)[i].h.MsgID != (*all)[0].h.MsgID:
				t.Errorf("%v, %v: told %s, %v", level, bad, ops(*all), (*all)[max(i, 0)].h)
			case level == iu.ReliableReception && (!w.done || w.status != vi.StatusRemoteDescriptor):
				t.Errorf("%v, %v: the message ends with %v", level, bad, w.status)
			}
		}
	}
}

// TestReleasedHandle: the handle and the Exchanges of an ended connection are not reused for a
// while, and its timers are stopped. [FCVI-4-6]
func TestReleasedHandle(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, stream: true})
	a, _ := s.connect(iu.ReliableDelivery)
	p, c, now := a.p, a.c, s.net.Now()
	ox, _ := p.oxids.alloc(c)
	c.rx.timer.Set(now + time.Hour)
	c.timer.Set(now + time.Hour)
	c.limit.Set(now + time.Hour)
	p.activate(c)
	index, ended := c.handle>>genBits, 0
	c.ended = []func(){func() { ended++ }}
	for range 2 { // the second call has no effect
		c.release(now, p.np.RATOV())
	}
	if x := p.oxids.at(ox); !x.used || x.owner != nil || c.rx.timer.Active() || c.timer.Active() ||
		c.limit.Active() || ended != 1 || slices.Contains(p.active, c) || p.handles.get(c.handle) != nil {
		t.Errorf("%+v, timers %v %v, told %d times", x, c.rx.timer.Active(), c.timer.Active(), ended)
	}
	if d := p.newConn(now+p.np.RATOV()-1, iu.ClientServer); d.handle>>genBits == index {
		t.Error("the index is used again before its time")
	}
	if d := p.newConn(now+p.np.RATOV(), iu.ClientServer); d.handle>>genBits != index || d.handle == c.handle {
		t.Errorf("handle %#x behind %#x", d.handle, c.handle)
	}
	s.net.Run(p.np.RATOV() + time.Second)
	if p.oxids.at(ox).used {
		t.Error("the Exchange is in use after R_A_TOV")
	}
}

// TestCachedNames: each resolved address has a separate cache entry. A port whose name differs from
// the requested one is logged out again. [FCVI-7.4-3]
func TestCachedNames(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	p := s.ports[0]
	for i, other := range []bool{false, false, true} {
		var got *fc.Remote
		var failed error
		name := s.ports[1].np.Name()
		if other {
			name++
		}
		sr := &search{p: p.port, key: hostKey{host: [16]byte{byte(i)}},
			done: func(_ fc.Time, r *fc.Remote, err error) { got, failed = r, err }}
		sr.login(s.net.Now(), s.ports[1].np.ID(), name)
		s.net.Run(time.Second)
		r := p.np.RemoteByName(s.ports[1].np.Name())
		if !other {
			var failed error
			(&search{p: p.port, done: func(_ fc.Time, _ *fc.Remote, err error) { failed = err }}).login(s.net.Now(),
				0x010900, name) // no port has this address
			s.net.Run(time.Minute)
			if failed == nil || errors.Is(failed, fc.ErrNoMatch) {
				t.Errorf("logged in to no port: %v", failed)
			}
		}
		if n := len(p.cache); !other && n != i+1 {
			t.Errorf("search %d: %d addresses are kept", i, n)
		}
		if (failed != nil) != other || (got != nil) == other || (r != nil && r.LoggedIn()) == other {
			t.Errorf("search %d: %v, %v; logged in %v", i, got, failed, r != nil && r.LoggedIn())
		}
	}
}

// TestRemembered: the first outcome of a peer's request is stored for R_A_TOV. A connection without
// a peer's request stores none. [FCVI-C-6]
func TestRemembered(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	p, now := s.ports[0], s.net.Now()
	c := p.newConn(now, iu.ClientServer)
	c.remember(now, iu.NoMatch)
	if len(p.setups) != 0 {
		t.Error("an outcome of no request is kept")
	}
	c.key, c.hasKey = setupKey{1, 2}, true
	c.remember(now, iu.ULPReject)
	c.remember(now, iu.Stale)
	if s := p.setups[c.key]; len(p.setups) != 1 || s.conn != nil || s.reason != iu.ULPReject {
		t.Errorf("%d outcomes, %+v", len(p.setups), s)
	}
	s.net.Run(p.np.RATOV() - time.Millisecond)
	if len(p.setups) != 1 {
		t.Error("forgotten before R_A_TOV")
	}
	s.net.Run(2 * time.Millisecond)
	if len(p.setups) != 0 {
		t.Error("kept for longer than R_A_TOV")
	}
}

// TestNoHandles: if no handle is free, a request is refused for that reason, in both connection
// models. [FCVI-5.3.3-1] [FCVI-A-2] [FCVI-6.8-3]
func TestNoHandles(t *testing.T) {
	for _, mode := range []iu.Mode{iu.ClientServer, iu.PeerToPeer} {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.connect(iu.ReliableDelivery)
		s.serve(s.fake(1, iu.ReliableDelivery), "x")
		all := s.record()
		b.p.handles.slots = append(b.p.handles.slots, make([]handleSlot, maxIndex)...)
		before := b.p.stats
		h, q := connectRqst(a, b, "x", 77)
		h.Flags = mode.Flags()
		s.inject(0, h, q.Append(nil), func(f *fc.Frame) { f.FCtl = 0x290000 })
		i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.ConnectResp1 })
		if i < 0 || (*all)[i].h.Status().Reason != iu.NoResources || (*all)[i].h.Handle != q.Handle ||
			b.p.stats.SetupLimit-before.SetupLimit != 1 {
			t.Errorf("%v: %s, %d counted", mode, ops(*all), b.p.stats.SetupLimit-before.SetupLimit)
		}
	}
}

// TestSourceGone: a Read whose memory was deregistered before its turn is answered with the reason
// and without data. [FCVI-5.2.4-3] [FCVI-5.2.5-5] [FCVI-5.2.4-5]
func TestSourceGone(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableDelivery)
	all := s.record()
	room := b.p.room
	b.p.room = func(fc.Addr) int { return 0 }
	w := a.post(vi.OpRDMARead, make([]byte, 5000))
	s.net.Run(10 * time.Millisecond)
	if b.c.answers.len() != 1 {
		t.Fatalf("%d answers wait", b.c.answers.len())
	}
	b.rights[1] = false
	b.p.room = room
	b.p.linkRoom(s.net.Now())
	s.net.Run(10 * time.Millisecond)
	i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.ReadResp })
	if i < 0 || (*all)[i].h.Flags != iu.FlagErr || (*all)[i].h.Status().Reason != iu.RDMAReadProt ||
		len((*all)[i].data) != 0 || (*all)[i].h.MsgID != (*all)[0].h.MsgID ||
		(*all)[i].f.OXID != (*all)[0].f.OXID {
		t.Errorf("told %s, %v", ops(*all), (*all)[max(i, 0)].h)
	}
	if !w.done || w.status != vi.StatusRDMAProtection || len(b.asyncs) != 1 ||
		b.asyncs[0] != vi.ErrorRDMARProt || a.broke != 1 || b.broke != 1 {
		t.Errorf("%v, %v; told %v, broken %d %d", w.done, w.status, b.asyncs, a.broke, b.broke)
	}
}

// TestFirstIDs: each connection has its own first message number. No message is longer than a
// Sequence can carry. [FCVI-6.8-2] [FCVI-5.7-4] [FCVI-7.3-8]
func TestFirstIDs(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	seen := map[iu.MsgID]bool{0: true}
	for range 4 {
		a, b := s.connect(iu.Unreliable)
		for _, f := range []*fake{a, b} {
			if seen[f.c.initTx] || f.c.tx.nextID != f.c.initTx {
				t.Errorf("numbers from %d on, %d", f.c.initTx, f.c.tx.nextID)
			}
			seen[f.c.initTx] = true
		}
		a.c.attrs.MaxTransfer = 1 << 31
		a.c.capTransfer()
		if want := uint32(fc.MaxSeqCount * ((fc.MaxData - iu.LongLen) &^ 3)); a.c.attrs.MaxTransfer != want {
			t.Errorf("at most %d bytes, want %d", a.c.attrs.MaxTransfer, want)
		}
	}
}

// TestUnreadable: a frame with an incomplete header is counted and has no effect. [FCVI-6.1-3]
func TestUnreadable(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	_, b := s.connect(iu.ReliableDelivery)
	before := b.p.stats
	h := iu.Header{Handle: b.c.handle, Op: iu.WriteRqst}
	for _, n := range []int{0, 1, iu.ShortLen - 1, iu.ShortLen} {
		b.p.Frame(s.net.Now(), b.c.remote, &fc.Frame{Opt: h.Append(nil)[:n]})
	}
	if n := b.p.stats.Malformed - before.Malformed; n != 4 || b.broke != 0 {
		t.Errorf("%d counted, broken %d", n, b.broke)
	}
}

// TestOthersLogout: the end of a login ends the connections with the port, and no other
// connections. [FCVI-7.7-2] [FCFS-2.10-7]
func TestOthersLogout(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableDelivery)
	key := hostKey{host: [16]byte{9}}
	a.p.cache[key] = mapping{addr: a.c.remote.Addr}
	other := &fc.Remote{Addr: a.c.remote.Addr + 1}
	a.p.LoggedOut(s.net.Now(), other)
	if _, ok := a.p.cache[key]; !ok || a.c.state != stConnected || a.broke != 0 {
		t.Errorf("by the end of another login: %v, broken %d, address kept %v", a.c.state, a.broke, ok)
	}
	b.postRecv(10)
	w := a.post(vi.OpSendReceive, []byte("x"))
	s.net.Run(time.Second)
	if !w.done || w.status != 0 {
		t.Errorf("behind it: %v, %v", w.done, w.status)
	}
	a.p.LoggedOut(s.net.Now(), a.c.remote)
	if _, ok := a.p.cache[key]; ok || !a.c.gone || a.broke != 1 {
		t.Errorf("by the end of the login: %v, broken %d, address kept %v", a.c.state, a.broke, ok)
	}
}

// TestWrongCache: an address that now belongs to another port is resolved again. [FCVI-7.4-1]
func TestWrongCache(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	s.connect(iu.ReliableDelivery) // logs in
	p, want := s.ports[0], s.ports[1].np
	addr := iu.IPAddress(addrOf(2), []byte("x"))
	p.cache[keyOf(addr)] = mapping{want.ID(), want.Name() + 1}
	var got *fc.Remote
	var failed error
	p.resolve(s.net.Now(), addr, func(_ fc.Time, r *fc.Remote, err error) { got, failed = r, err })
	s.net.Run(time.Second)
	if failed != nil || got == nil || got.PortName != want.Name() ||
		p.cache[keyOf(addr)] != (mapping{want.ID(), want.Name()}) {
		t.Errorf("%v, %v, in the cache %v", got, failed, p.cache[keyOf(addr)])
	}
	gone := iu.IPAddress(addrOf(9), []byte("x")) // an address that no port has
	p.cache[keyOf(gone)] = mapping{want.ID(), want.Name() + 1}
	failed = nil
	p.resolve(s.net.Now(), gone, func(_ fc.Time, r *fc.Remote, err error) { failed = err })
	s.net.Run(time.Minute)
	if _, ok := p.cache[keyOf(gone)]; ok || failed == nil {
		t.Errorf("an address that no port has: %v, in the cache %v", failed, ok)
	}
}

// TestRetryWithoutExchange: if no Exchange is free for a second attempt, the set-up ends, and the
// Exchange of the first attempt is released once. [FCVI-8.5-2] [FCVI-5.3.2-1]
func TestRetryWithoutExchange(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	s.connect(iu.ReliableDelivery) // logs in
	s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectRqst), Do: fabric.Drop})
	a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
	before := a.p.stats
	s.dial(a, b, "x", iu.ClientServer)
	s.net.Run(time.Second)
	for ok := true; ok; {
		_, ok = a.p.oxids.alloc(nil)
	}
	s.net.Run(a.p.tRqst())
	if len(a.result) != 1 || a.result[0] != iu.NoResources || a.p.stats.Aborts-before.Aborts != 1 {
		t.Errorf("%v, %d ABTS", a.result, a.p.stats.Aborts-before.Aborts)
	}
}

// TestClass2Gone: if the memory of a message is deregistered before the message is sent, the port
// waits for no ACK. [FCVI-5.2.2-1]
func TestClass2Gone(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, class: fc.Class2, class2: true})
	a, b := s.connect(iu.Unreliable)
	r := b.postRecv(10)
	a.sends = append(a.sends, &fakeSend{ctl: vi.OpSendReceive, data: pattern(10, 1), gone: true},
		&fakeSend{ctl: vi.OpSendReceive, data: pattern(10, 2)})
	a.c.posted(s.net.Now())
	s.net.Run(time.Second)
	if a.sends[0].status != vi.StatusProtectionError || !a.sends[1].done || a.sends[1].status != 0 ||
		!r.done || a.c.tx.acks.len() != 0 {
		t.Errorf("%v; %v %v, received %v; %d ACKs are awaited", a.sends[0].status, a.sends[1].done,
			a.sends[1].status, r.done, a.c.tx.acks.len())
	}
}

// TestAcceptedTooLate: a parsable acceptance for an abandoned request is cancelled. [FCVI-C-1]
// [FCVI-8.2-3]
func TestAcceptedTooLate(t *testing.T) {
	for _, spoil := range []bool{false, true} {
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.connect(iu.ReliableDelivery)
		all := s.record()
		payload := b.p.cfg.codec.AppendConnectResp1(nil,
			&iu.AcceptPayload{Handle: 0x00066001, Local: b.c.local, Attributes: b.attrs()})
		if spoil {
			payload[0]++ // the version
		}
		s.inject(1, iu.Header{Op: iu.ConnectResp1, Handle: 0x00990001, Flags: iu.FlagPos, MsgID: 1, Total: 77},
			payload, func(f *fc.Frame) { f.FCtl = 0x890000 })
		r, h := firstDisconnect(*all)
		if spoil && r != 0 ||
			!spoil && (r != iu.Cancelled || h.Handle != 0x00066001 || h.RmtHandle != 0x00990001 ||
				h.Total != 77 || h.Flags != iu.FlagErr) {
			t.Errorf("spoilt %v: %v, %v", spoil, r, h)
		}
		if a.broke != 0 || b.broke != 0 {
			t.Errorf("spoilt %v: broken %d %d", spoil, a.broke, b.broke)
		}
	}
}

// TestFailedWhileSent: if a class 2 message fails while being sent, the message ends, and the next
// message starts. [FCVI-8.4-15] [FCVI-5.2.2-1]
func TestFailedWhileSent(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, class: fc.Class2, class2: true})
	a, b := s.connect(iu.Unreliable)
	b.postRecv(10)
	a.post(vi.OpSendReceive, pattern(200<<10, 1)) // more frames than the credit allows
	if !s.net.RunUntil(time.Second, func() bool { return a.c.tx.busy && a.c.tx.off > 0 }) {
		t.Fatal("nothing is being sent")
	}
	next := a.post(vi.OpSendReceive, pattern(10, 2))
	a.p.Failed(s.net.Now(), a.c.remote, &fc.Frame{Header: fc.Header{OXID: a.c.tx.oxid}}, 1)
	if w := a.sends[0]; !w.done || w.status != vi.StatusTransportError || a.broke != 0 {
		t.Errorf("done %v, %v, broken %d", w.done, w.status, a.broke)
	}
	s.net.Run(10 * time.Second)
	if !next.done || next.status != 0 || a.c.tx.acks.len() != 0 {
		t.Errorf("the next: %v, %v; %d ACKs are awaited", next.done, next.status, a.c.tx.acks.len())
	}
}

// TestBrokenInStream: when the connection breaks, an Exchange that messages share is not aborted.
// No Exchange at all is aborted towards a port whose login has ended. [FCVI-8.4-16]
func TestBrokenInStream(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true, stream: true})
	a, b := s.connect(iu.ReliableDelivery)
	b.postRecv(1 << 20)
	a.post(vi.OpSendReceive, pattern(1<<20, 1))
	if !s.net.RunUntil(time.Second, func() bool { return a.c.tx.busy && a.c.tx.off > 0 }) {
		t.Fatal("nothing is being sent")
	}
	before := a.p.stats.Aborts
	a.c.fail(s.net.Now(), &failure{reason: iu.Protocol})
	if n := a.p.stats.Aborts - before; n != 0 || a.broke != 1 || a.c.state != stError {
		t.Errorf("%d ABTS, broken %d, %v", n, a.broke, a.c.state)
	}

	s = newSim(t, simConfig{seed: 1, order: true})
	a, b = s.connect(iu.ReliableReception)
	s.net.AddFault(&fabric.Fault{Match: opcode(iu.SendResp), Do: fabric.Drop})
	b.postRecv(10)
	a.post(vi.OpSendReceive, []byte("x"))
	s.net.Run(time.Millisecond)
	before = a.p.stats.Aborts
	a.p.np.Logout(s.net.Now(), a.c.remote)
	if n := a.p.stats.Aborts - before; n != 0 || a.broke != 1 {
		t.Errorf("logged out: %d ABTS, broken %d", n, a.broke)
	}
}

// TestStrangers: an IU with an unknown handle affects only the source port, and is answered once in
// R_A_TOV. [FCVI-6.12-2] [FCVI-8.2-3] [FCVI-8.2-4]
func TestStrangers(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, _ := s.connect(iu.ReliableDelivery)
	p, now := a.p, s.net.Now()
	h := iu.Header{Op: iu.DisconnectRqst, RmtHandle: a.c.rHandle, Flags: iu.FlagErr}
	f := fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt}
	stranger := *a.c.remote
	p.unknown(now, &stranger, &f, &h)
	if a.broke != 0 {
		t.Error("broken by a stranger")
	}
	h = iu.Header{Op: iu.SendRqst, Handle: 0x00990001}
	for _, v := range []struct {
		after time.Duration
		tells bool
	}{{0, true}, {p.np.RATOV() - 1, false}, {p.np.RATOV(), true}} {
		used := p.oxids.used
		p.unknown(now+v.after, a.c.remote, &f, &h)
		if got := p.oxids.used > used; got != v.tells {
			t.Errorf("%v after the first: told %v", v.after, got)
		}
	}
	p.unknown(now, a.c.remote, &f, &iu.Header{Op: iu.DisconnectRqst, RmtHandle: a.c.rHandle, Flags: iu.FlagErr})
	if a.broke != 1 {
		t.Error("not broken by the peer")
	}
}

// TestShortTypes: a candidate whose directory entry is incomplete is skipped. [FCVI-7.6-4]
func TestShortTypes(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	p, good := s.ports[0], s.ports[1].np
	cut := 0
	s.net.Tap(func(_ fc.Time, _ *fabric.End, f *fc.Frame) {
		if f.Type == fc.TypeCT && f.DID == p.np.ID() && cut == 0 {
			cut++
			f.Payload = f.Payload[: len(f.Payload)-1 : len(f.Payload)-1]
		}
	})
	var found *fc.Remote
	x := &search{p: p.port, key: keyOf(iu.IPAddress(addrOf(9), nil)), ids: []fc.Addr{good.ID(), good.ID()},
		done: func(_ fc.Time, r *fc.Remote, _ error) { found = r }}
	x.candidate(s.net.Now())
	s.net.Run(2 * time.Minute)
	if cut != 1 || found == nil || found.PortName != good.Name() || len(x.ids) != 0 {
		t.Errorf("%d replies cut; found %v, %d left", cut, found, len(x.ids))
	}
}

// TestStallBeyond: T_GAP begins with the first frame beyond the expected message, and restarts with
// each frame of the expected message. [FCVI-8.4-10]
func TestStallBeyond(t *testing.T) {
	s := newSim(t, simConfig{seed: 1})
	_, b := s.connect(iu.ReliableDelivery)
	r, now := &b.c.rx, s.net.Now()
	expected, beyond := &rxMsg{h: iu.Header{MsgID: r.mexp}}, &rxMsg{h: iu.Header{MsgID: r.mexp + 1}}
	for i, step := range []struct {
		m    *rxMsg
		at   fc.Time
		want fc.Time
	}{
		{beyond, now, now + b.c.gap()},
		{beyond, now + 1, now + b.c.gap()},
		{expected, now + 2, now + 2 + b.c.gap()},
		{beyond, now + 3, now + 2 + b.c.gap()},
		{&rxMsg{h: expected.h, stage: complete}, now + 4, 0},
		{&rxMsg{h: beyond.h, stage: complete}, now + 5, now + 5 + b.c.gap()},
	} {
		if b.c.rx.stall(step.at, step.m); r.stallAt != step.want {
			t.Errorf("step %d: declared at %v, want %v", i, r.stallAt, step.want)
		}
	}
}

// TestRejectedBehind: at Unreliable Delivery a message for which there is no room leaves no gap in
// front of later messages, even while an earlier message waits for a receive. [FCVI-5.2.2-6]
// [VIA-4.5-2] [VIA-8.3-10]
func TestRejectedBehind(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.Unreliable)
	b.c.holds = true
	send := func(body string) {
		a.post(vi.OpSendReceive, []byte(body))
		s.net.Run(10 * time.Millisecond)
	}
	send("1")
	held := b.c.rx.hold
	b.c.rx.hold = b.c.maxHold()
	send("2")
	b.c.rx.hold = held
	send("3")
	for range 2 {
		b.postRecv(10)
	}
	s.net.Run(time.Second)
	for i, want := range []byte("13") {
		if r := b.recvs[i]; !r.done || r.d.Length != 1 || r.buf[0] != want {
			t.Errorf("receive %d: %+v", i, r.d)
		}
	}
	if st := s.ports[1].stats; st.Gaps != 0 || st.Discarded != 1 {
		t.Errorf("%d gaps, %d discarded", st.Gaps, st.Discarded)
	}
}
