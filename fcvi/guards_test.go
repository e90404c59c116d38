package fcvi

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// firstDisconnect returns the reason and the header of the first DISCONNECT_RQST among the sent
// frames.
func firstDisconnect(all []sent) (iu.Reason, iu.Header) {
	for _, x := range all {
		if x.h.Op == iu.DisconnectRqst {
			return x.h.Status().Reason, x.h
		}
	}
	return 0, iu.Header{}
}

// answer sends f a response to request id, as the peer's machine never would. The OX_ID is
// arbitrary if the request is not pending.
func (s *sim) answer(f *fake, op iu.Opcode, id iu.MsgID, flags iu.Flags, reason iu.Reason, data []byte, off uint32, last bool) {
	ox := uint16(0x7777)
	for _, q := range f.c.tx.resp.pending.all() {
		if q.id == id {
			ox = q.oxid
		}
	}
	from := 1
	if f.p == s.ports[1] {
		from = 0
	}
	s.inject(from, iu.Header{Op: op, Handle: f.c.handle, MsgID: id, Flags: flags, Param: iu.Status{Reason: reason}.Param()}, data, func(x *fc.Frame) {
		x.OXID, x.RXID = ox, 0x1234
		x.FCtl = x.FCtl&^fc.FCtlFirstSeq | fc.FCtlExchResponder
		if !last {
			x.FCtl &^= fc.FCtlEndSeq | fc.FCtlLastSeq
		}
		if op == iu.ReadResp && reason == 0 {
			x.Param = off
		}
	})
}

// TestUnexpectedResponses: a response that answers no request, or whose length differs from the
// request, is detected. [FCVI-5.9.6-5]
func TestUnexpectedResponses(t *testing.T) {
	t.Run("FCVI-8.4-13", func(t *testing.T) { // the response is for a message that was not sent yet
		for _, level := range []iu.Reliability{iu.ReliableDelivery, iu.ReliableReception} {
			s := newSim(t, simConfig{seed: 1, order: true})
			a, b := s.connect(level)
			all := s.record()
			id := a.c.tx.nextID
			s.answer(a, iu.SendResp, id, 0, 0, nil, 0, true)
			s.net.Run(time.Second)
			if r, h := firstDisconnect(*all); r != iu.UnexpectedResp || h.MsgID != id ||
				h.Flags != iu.FlagErr|iu.FlagMsgID || a.broke != 1 || b.broke != 1 {
				t.Errorf("%v: %v, %v; broken %d, %d", level, r, h, a.broke, b.broke)
			}
		}
	})
	t.Run("FCVI-6.7-1", func(t *testing.T) {
		for name, v := range map[string]struct {
			off  uint32
			n    int
			last bool
		}{"short": {0, 9, true}, "long": {0, 11, true}, "beyond the end": {8, 4, false}, "behind the end": {11, 1, false}, "far away": {1<<32 - 1, 1, false}} {
			s := newSim(t, simConfig{seed: 1, order: false})
			a, b := s.connect(iu.ReliableDelivery)
			all := s.record()
			s.net.AddFault(&fabric.Fault{Match: opcode(iu.ReadResp), Do: fabric.Drop, Nth: 1})
			w := a.post(vi.OpRDMARead, make([]byte, 10))
			s.net.Run(time.Millisecond)
			s.answer(a, iu.ReadResp, a.c.tx.resp.pending.at(0).id, 0, 0, bytes.Repeat([]byte{1}, v.n), v.off, v.last)
			s.net.Run(time.Second)
			if r, _ := firstDisconnect(*all); r != iu.Protocol || a.broke != 1 || b.broke != 1 ||
				w.done && w.status == 0 {
				t.Errorf("%s: %v; broken %d, %d; done %v %v", name, r, a.broke, b.broke, w.done, w.status)
			}
		}
	})
	t.Run("FCVI-5.9.3-4", func(t *testing.T) {
		for _, level := range levels {
			s := newSim(t, simConfig{seed: 1, order: true})
			a, b := s.connect(level)
			all := s.record()
			id := a.c.tx.nextID
			s.inject(0, iu.Header{Handle: b.c.handle, Op: 0x55, MsgID: id}, nil,
				func(f *fc.Frame) { f.Opt, f.DFCtl = f.Opt[:16], 1 })
			s.net.Run(time.Second)
			r, h := firstDisconnect(*all)
			if s.ports[1].stats.BadOpcode != 1 {
				t.Errorf("%v: counted %d", level, s.ports[1].stats.BadOpcode)
			}
			if level == iu.Unreliable {
				if r != 0 || b.broke != 0 {
					t.Errorf("%v: %v, broken %d", level, r, b.broke)
				}
			} else if r != 0x65 || h.MsgID != id || b.broke != 1 || a.broke != 1 {
				t.Errorf("%v: %v, %v, broken %d %d", level, r, h, a.broke, b.broke)
			}
		}
	})
}

// TestFailingMessage: the messages before and after a failed one complete with the right status.
// [FCVI-E-4]
func TestFailingMessage(t *testing.T) {
	post := func(t *testing.T, op iu.Opcode) (*sim, *fake, *fake, *[]sent) {
		s := newSim(t, simConfig{seed: 1, order: false})
		a, b := s.connect(iu.ReliableReception)
		all := s.record()
		s.net.AddFault(&fabric.Fault{Match: opcode(op), Do: fabric.Drop})
		for range 4 { // all of them wait for their response
			b.postRecv(10)
			a.post(vi.OpSendReceive, []byte("x"))
		}
		s.net.Run(time.Millisecond)
		if a.c.tx.resp.pending.len() != 4 {
			t.Fatalf("%d pending", a.c.tx.resp.pending.len())
		}
		return s, a, b, all
	}
	check := func(t *testing.T, a *fake) {
		t.Helper()
		for i, w := range a.sends {
			want := []vi.Status{0, 0, vi.StatusRemoteDescriptor}
			if i > 2 { // flushed by the failure of message 2
				if w.done {
					t.Errorf("message %d: %v", i, w.status)
				}
			} else if !w.done || w.status != want[i] {
				t.Errorf("message %d: done %v, %v", i, w.done, w.status)
			}
		}
		if a.broke != 1 {
			t.Errorf("broken %d", a.broke)
		}
	}
	t.Run("by its response", func(t *testing.T) {
		s, a, _, all := post(t, iu.SendResp)
		first := a.c.tx.resp.pending.at(0).id
		for i := range a.c.tx.resp.pending.len() { // the messages before number 2 requested no response of their own
			a.c.tx.resp.pending.at(i).asked = i >= 2
		}
		s.net.ClearFaults()
		s.answer(a, iu.SendResp, first+2, iu.FlagErr, iu.NoRecvDesc, nil, 0, true)
		s.net.Run(time.Second)
		check(t, a)
		if r, h := firstDisconnect(*all); r != iu.NoRecvDesc || h.MsgID != first+2 {
			t.Errorf("%v, %v", r, h)
		}
	})
	t.Run("by a disconnect", func(t *testing.T) {
		s, a, b, _ := post(t, iu.SendResp)
		h := iu.Header{Op: iu.DisconnectRqst, Handle: a.c.handle, RmtHandle: b.c.handle,
			Total: a.c.own.id, Flags: iu.FlagErr | iu.FlagMsgID,
			MsgID: a.c.tx.resp.pending.at(0).id + 2, Param: iu.Status{Reason: iu.NoRecvDesc}.Param()}
		s.inject(1, h, nil, func(f *fc.Frame) { f.FCtl = 0x290000 })
		check(t, a)
		if !a.order { // the failed send reports the error, so the other sends are flushed
			t.Error("an orderly end was expected")
		}
	})
}

// connectRqst returns the header and payload of a CONNECT_RQST to discriminator disc at b.
func connectRqst(a, b *fake, disc string, id uint32) (iu.Header, iu.ConnectPayload) {
	return iu.Header{Op: iu.ConnectRqst, Flags: iu.ClientServer.Flags(), MsgID: 1, Total: id},
		iu.ConnectPayload{Version: iu.ProjectVersion, Handle: 0x00055001, InitialMsgID: 9,
			Timeout: iu.NoTimeout, Local: a.net("me"), Remote: b.net(disc), Attributes: a.attrs()}
}

// TestRefusedRequests: each request below is refused at once, and the waiter still waits
// afterwards.
func TestRefusedRequests(t *testing.T) {
	for row, v := range map[string]struct {
		change func(q *iu.ConnectPayload)
		bytes  func(b []byte)
		reason iu.Reason
	}{
		"FCVI-7.3-8": {func(q *iu.ConnectPayload) { q.Attributes.Reliability, q.Attributes.Read = iu.Unreliable, true }, nil, iu.InvalidRDMARead},
		"FCVI-6.9-3": {nil, func(b []byte) { b[0] = iu.ProjectVersion + 1 }, iu.BadFormat},
		"handle 0":   {func(q *iu.ConnectPayload) { q.Handle = 0 }, nil, iu.BadFormat},
	} {
		t.Run(row, func(t *testing.T) {
			s := newSim(t, simConfig{seed: 1, order: true})
			a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
			first, _ := s.connect(iu.ReliableDelivery) // logs in
			first.c.disconnect(s.net.Now())
			s.net.Run(time.Second)
			s.serve(b, "x")
			all := s.record()
			h, q := connectRqst(a, b, "x", 77)
			if v.change != nil {
				v.change(&q)
			}
			payload := q.Append(nil)
			if v.bytes != nil {
				v.bytes(payload)
			}
			s.inject(0, h, payload, func(f *fc.Frame) { f.FCtl = 0x290000 })
			i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.ConnectResp1 })
			if i < 0 || (*all)[i].h.Status().Reason != v.reason || (*all)[i].f.FCtl&fc.FCtlLastSeq == 0 ||
				(*all)[i].h.Handle != q.Handle || len((*all)[i].data) != 0 {
				t.Fatalf("%s: %v", ops(*all), (*all)[max(i, 0)].h)
			}
			if b.c != nil || len(b.p.waits) != 1 {
				t.Error("the waiter was given the request")
			}
		})
	}
}

// TestAskedOften: a port that has refused more requests than it remembers refuses the next one for its
// own reason, and gives it to a waiter if there is one. A repeated request is answered as before if the
// port remembers it, and counts as new if not. [FCVI-C-6] [FCVI-5.3.2-5]
func TestAskedOften(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableDelivery) // logs in
	a.c.disconnect(s.net.Now())
	s.net.Run(time.Second)
	all := s.record()
	ask := func(id uint32, want iu.Reason) {
		t.Helper()
		*all = (*all)[:0]
		h, q := connectRqst(a, b, "x", id)
		s.inject(0, h, q.Append(nil), func(f *fc.Frame) { f.FCtl = 0x290000 })
		i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.ConnectResp1 })
		if i < 0 || (*all)[i].h.Status().Reason != want {
			t.Fatalf("request %d: %v", id, *all)
		}
	}
	const first = 1000
	last := uint32(first + maxEnded)
	for id := uint32(first); id <= last; id++ {
		ask(id, iu.NoMatch)
	}
	if len(b.p.setups) != maxEnded || len(b.p.ended) != maxEnded {
		t.Errorf("%d set-ups, %d ended", len(b.p.setups), len(b.p.ended))
	}
	b.c = nil
	s.serve(s.fake(1, iu.ReliableDelivery), "x")
	ask(last, iu.NoMatch)
	if len(b.p.waits) != 1 {
		t.Error("a repeated request was given to the waiter")
	}
	ask(first, iu.Accepted)
	if len(b.p.waits) != 0 {
		t.Error("the waiter was not given the request")
	}
	s.net.Run(b.p.np.RATOV() + time.Second)
	if len(b.p.ended) > 1 || len(b.p.setups) > 1 {
		t.Errorf("%d set-ups, %d ended after R_A_TOV", len(b.p.setups), len(b.p.ended))
	}
}

// TestSetupKey: requests with the same connection id from two ports are two set-ups.
// [FCVI-5.9.10-3]
func TestSetupKey(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	b := s.fake(1, iu.ReliableDelivery)
	// The test adds a third port.
	third := &simPort{n: 3}
	s.net.BringUp(s.net.Attach(s.sw, func(out fc.Sender) fabric.Device {
		third.end = out.(*fabric.End)
		np := fc.NewNPort(fc.PortConfig{PortName: fc.PortName(0x020000000109, 1), NodeName: fc.NodeName(0x020000000109), IPs: []netip.Addr{addrOf(3)}}, out)
		third.port = newPort(np, machineConfig{}, func(fc.Addr) int { return 1 })
		return roomy{np, third}
	}))
	s.net.Run(time.Second)
	s.ports = append(s.ports, third)
	var accepted []*conn
	for range 2 {
		s.ports[1].addWait(0, &wait{disc: []byte("x"), match: func(c *conn) { accepted = append(accepted, c) }})
	}
	for _, i := range []int{0, 2} {
		a := s.fake(i, iu.ReliableDelivery)
		var r *fc.Remote
		s.ports[i].np.Login(s.net.Now(), s.ports[1].np.ID(), func(_ fc.Time, got *fc.Remote, _ error) { r = got })
		s.net.Run(time.Second)
		h, q := connectRqst(a, b, "x", 77)
		f := fc.Frame{Payload: q.Append(nil), Opt: h.Append(nil),
			Header: fc.Header{RCtl: 2, Type: fc.TypeFCVI, DFCtl: 2, FCtl: 0x290000, OXID: 5, RXID: fc.Unassigned}}
		s.ports[i].np.Send(s.net.Now(), r, fc.Class3, true, &f)
		s.net.Run(time.Millisecond)
	}
	if len(accepted) != 2 || accepted[0] == accepted[1] || len(s.ports[1].setups) != 2 ||
		s.ports[1].stats.DupRqst != 0 {
		t.Errorf("%d requests, %d set-ups, %d repeats", len(accepted), len(s.ports[1].setups), s.ports[1].stats.DupRqst)
	}
}

// TestLostResp2: if a client sends nothing after a request, the server cancels the acceptance after
// T_RESP2, and not before. [FCVI-C-4] [FCVI-8.3-3]
func TestLostResp2(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectResp2), Do: fabric.Drop})
	a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
	s.serve(b, "x")
	s.dial(a, b, "x", iu.ClientServer)
	s.net.Run(time.Millisecond)
	if b.c.state != stResp1 || a.c.state != stResp2 {
		t.Fatalf("states %v, %v", a.c.state, b.c.state)
	}
	a.c.timer.Stop() // the client disappears without a message
	limit := s.ports[1].np.RATOV() + 8*s.ports[1].tRqst()
	s.net.Run(limit - 100*time.Millisecond)
	if b.c.state != stResp1 || len(b.result) != 0 {
		t.Fatalf("%v, %v before T_RESP2", b.c.state, b.result)
	}
	s.net.Run(200 * time.Millisecond)
	if !b.c.gone || len(b.result) != 1 || b.result[0] != iu.ULPTimeout {
		t.Errorf("%v, %v after T_RESP2", b.c.state, b.result)
	}
}

// TestClientRefuses: a RESP1 whose attributes do not match is refused by RESP2, and both sides get
// the reason. The server can't detect the mismatch, because its own check has passed.
// [FCVI-5.3.2-8]
func TestClientRefuses(t *testing.T) {
	for _, v := range []struct {
		change func(a *iu.Attributes)
		again  bool // an earlier RESP1 was answered by RESP2(CONFIRMED)
		reason iu.Reason
	}{
		{func(a *iu.Attributes) { a.Reliability = iu.ReliableReception }, false, iu.InvalidReliability},
		{func(a *iu.Attributes) { a.MaxTransfer = 0 }, false, iu.InvalidMTS},
		{func(a *iu.Attributes) { a.QoS.Class = 3 }, false, iu.InvalidQoS},
		{func(a *iu.Attributes) { a.QoS.Class = 3 }, true, iu.InvalidQoS},
	} {
		t.Run(fmt.Sprintf("%v, again %v", v.reason, v.again), func(t *testing.T) {
			s := newSim(t, simConfig{seed: 1, order: true})
			a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
			s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectResp1), Do: fabric.Drop, Nth: 1})
			all := s.record()
			s.serve(b, "x")
			s.dial(a, b, "x", iu.ClientServer)
			a.c.attrs.QoS.Class = 2 // changed after the request was sent
			s.net.Run(time.Millisecond)
			at := b.attrs()
			v.change(&at)
			own := a.c.own
			if v.again {
				a.c.sentResp2, a.c.rHandle = true, b.c.handle
				a.c.startStreams()
			}
			aborts := s.ports[0].stats.Aborts
			payload := b.p.cfg.codec.AppendConnectResp1(nil,
				&iu.AcceptPayload{Handle: b.c.handle, Local: b.c.local, Attributes: at})
			s.inject(1, iu.Header{Op: iu.ConnectResp1, Handle: a.c.handle, Flags: iu.ClientServer.Flags() | iu.FlagPos, MsgID: own.attempt, Total: own.id}, payload,
				func(f *fc.Frame) { f.OXID, f.RXID, f.FCtl = own.oxid, b.c.their.rxid, 0x890000 })
			s.net.Run(time.Second)
			i := slices.IndexFunc(*all, func(x sent) bool { return x.h.Op == iu.ConnectResp2 })
			if i < 0 || (*all)[i].h.Status().Reason != v.reason || (*all)[i].h.Flags&iu.FlagPos != 0 ||
				(*all)[i].f.FCtl&fc.FCtlLastSeq == 0 || (*all)[i].h.Handle != b.c.handle {
				t.Fatalf("%s: %v", ops(*all), (*all)[max(i, 0)].h)
			}
			for _, f := range []*fake{a, b} {
				if len(f.result) != 1 || f.result[0] != v.reason || !f.c.gone || f.c.state != stIdle {
					t.Errorf("%v, %v", f.result, f.c.state)
				}
			}
			// RESP2 has closed the Exchange and reported the reason, so no other IU is sent.
			if r, _ := firstDisconnect(*all); r != 0 || s.ports[0].stats.Aborts != aborts ||
				s.ports[0].oxids.owner(own.oxid) != nil {
				t.Errorf("told by %v, %d aborts, the Exchange open %v", r, s.ports[0].stats.Aborts-aborts,
					s.ports[0].oxids.owner(own.oxid) != nil)
			}
		})
	}
}

// TestConcededThenAccepted: if the winner accepts the loser's request, the loser continues as
// originator. [FCVI-5.3.4-8]
func TestConcededThenAccepted(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
	all := s.record()
	a.p.connectPeer(s, a, b)
	s.net.RunUntil(time.Second, func() bool { return requests(s, *all, 0) > 0 })
	s.net.Run(time.Millisecond)
	s.resp1(a, b, iu.PeerYield, nil) // concedes to a request that never arrives
	if a.c.state != stConceded {
		t.Fatalf("state %v", a.c.state)
	}
	a.c.own.open = true
	b.p.connectPeer(s, b, a) // finds a's held request and accepts it
	s.net.Run(time.Second)
	if requests(s, *all, 1) != 0 || a.c.responder || !b.c.responder {
		t.Fatalf("responders %v %v: %s", a.c.responder, b.c.responder, ops(*all))
	}
	connectedPeers(t, s, a, b)
}

// TestFCVI_7_6: the directory may list several candidates for an address. The port asks for the
// FC-4 types of each before it logs in, and skips a candidate without FC-VI. [FCVI-7.6-4]
// [FCVI-7.6-3]
func TestFCVI_7_6(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	// This port has the address of port 1, but does not support FC-VI.
	var other *fc.NPort
	logins := 0
	s.net.BringUp(s.net.Attach(s.sw, func(out fc.Sender) fabric.Device {
		other = fc.NewNPort(fc.PortConfig{PortName: fc.PortName(0x020000000109, 1), NodeName: fc.NodeName(0x020000000109), IPs: []netip.Addr{addrOf(2), addrOf(3)}}, out)
		other.Register(8, s.ports[0].port) // another FC-4
		return other
	}))
	s.net.Run(time.Second)
	s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
		if from.Faulty && f.DID == other.ID() && f.Type == fc.TypeELS && fc.CmdOf(f.Payload) == fc.ELSPLOGI {
			logins++
		}
	})
	dial := func(ip int) iu.Reason {
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		s.serve(b, "x")
		clear(a.p.cache)
		a.c = a.p.connect(s.net.Now(), connectArgs{mode: iu.ClientServer, local: a.net("me"),
			remote: iu.IPAddress(addrOf(ip), []byte("x")),
			attrs:  a.attrs(), deadline: fc.Never, up: a, done: a.result1})
		s.net.Run(2 * time.Minute)
		if len(a.result) != 1 {
			t.Fatalf("%v", a.result)
		}
		return a.result[0]
	}
	if other.State() != fc.Online || other.ID() == 0 {
		t.Fatalf("%v at %v", other.State(), other.ID())
	}
	if r := dial(2); r != iu.Confirmed {
		t.Errorf("beside a port without FC-VI: %v", r)
	}
	if r := dial(3); r != notReachable {
		t.Errorf("a port without FC-VI: %v", r)
	}
	if logins != 0 {
		t.Errorf("%d logins to a port without FC-VI", logins)
	}
	// If the login with a candidate fails, the next candidate is tried. [FCVI-7.4-3]
	p, good := s.ports[0], s.ports[1].np
	var found *fc.Remote
	x := &search{p: p.port, key: keyOf(iu.IPAddress(addrOf(9), nil)), ids: []fc.Addr{good.ID()},
		done: func(_ fc.Time, r *fc.Remote, _ error) { found = r }}
	x.login(s.net.Now(), 0x01ee00, 1)
	s.net.Run(2 * time.Minute)
	if found == nil || found.PortName != good.Name() {
		t.Errorf("behind a candidate that does not answer: %v", found)
	}
	// A candidate unknown to the directory is skipped too.
	found = nil
	x = &search{p: p.port, key: keyOf(iu.IPAddress(addrOf(9), nil)), ids: []fc.Addr{0x01ee00, good.ID()},
		done: func(_ fc.Time, r *fc.Remote, _ error) { found = r }}
	x.candidate(s.net.Now())
	s.net.Run(2 * time.Minute)
	if found == nil || found.PortName != good.Name() {
		t.Errorf("behind a candidate that is not known: %v", found)
	}
}

// TestOwnNames: the names of a NIC's ports contain one locally administered MAC address, in the
// form of NAA 2, and differ from each other. [FCFS-2.6-2]
func TestOwnNames(t *testing.T) {
	seen := map[fc.WWN]bool{}
	for range 64 { // repeated, because the MAC address is random
		p, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := vi.Open(p, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		d := n.Device().(*device)
		var names []fc.WWN
		for range 2 {
			s, err := d.station(nil, func(*station) (outlet, error) { return nowhere{}, nil })
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, s.np.Name())
			if s.np.Node()>>60 != 2 || uint64(s.np.Node())&(1<<48-1) != d.mac {
				t.Errorf("Node_Name %v of MAC %012x", s.np.Node(), d.mac)
			}
			s.close()
		}
		for _, w := range names {
			if w>>60 != 2 || uint64(w)&(1<<48-1) != d.mac || d.mac>>40&3 != 2 || seen[w] {
				t.Errorf("Port_Name %v of MAC %012x", w, d.mac)
			}
			seen[w] = true
		}
		n.Close()
	}
}

// TestClass2Failure: at each level a class 2 frame is rejected: a frame in the middle of a message,
// the last frame of a message, or a response. [FCVI-8.4-15]
func TestClass2Failure(t *testing.T) {
	for _, level := range levels {
		for _, at := range []string{"middle", "last", "response"} {
			if at == "response" && level == iu.Unreliable {
				continue
			}
			t.Run(fmt.Sprintf("%v/%s", level, at), func(t *testing.T) {
				s := newSim(t, simConfig{seed: 1, order: true, class: fc.Class2, class2: true})
				a, b := s.connect(level)
				op := iu.SendRqst
				if at == "response" {
					op = iu.ReadResp
				}
				aborts, reasons := 0, map[iu.Reason]int{}
				s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
					if from.Faulty && f.RCtl == fc.RCtlABTS && f.SID == a.p.np.ID() {
						aborts++
					}
					if h, _, err := iu.ParseHeader(f.Opt); err == nil && opcode(iu.DisconnectRqst)(f) {
						reasons[h.Status().Reason]++
					}
				})
				var hit *fc.Frame
				s.net.AddFault(&fabric.Fault{Do: fabric.Drop, Nth: 1, Match: func(f *fc.Frame) bool {
					if opcode(op)(f) && (at == "middle") == !f.Last() && hit == nil {
						c := *f
						hit = &c
						return true
					}
					return false
				}})
				size := 5000
				if at == "middle" { // more frames than the credit, so that some are not sent
					size = 200 << 10
				}
				b.postRecv(size)
				var w *fakeSend
				if at == "response" {
					w = a.post(vi.OpRDMARead, make([]byte, 10))
				} else {
					w = a.post(vi.OpSendReceive, pattern(size, 1))
				}
				s.net.RunUntil(time.Second, func() bool { return hit != nil })
				if hit == nil {
					t.Fatal("no frame was hit")
				}
				victim := a
				if at == "response" {
					victim = b
				}
				rjt := fc.Frame{SOF: fc.SOFn2, EOF: fc.EOFt,
					Header: fc.Header{RCtl: fc.RCtlPRJT, DID: hit.SID, SID: hit.DID, Type: fc.TypeBLS,
						FCtl: hit.FCtl ^ fc.FCtlExchResponder, SeqID: hit.SeqID, SeqCnt: hit.SeqCnt,
						OXID: hit.OXID, RXID: hit.RXID, Param: 1<<24 | fc.RejectType<<16}}
				victim.p.np.Receive(s.net.Now(), &rjt)
				s.net.Run(time.Second)
				if level == iu.Unreliable {
					if a.broke+b.broke != 0 || !w.done || w.status != vi.StatusTransportError || aborts != 1 {
						t.Errorf("broken %d %d, %v %v, %d aborts", a.broke, b.broke, w.done, w.status, aborts)
					}
					r := b.postRecv(9000) // the connection continues
					next := a.post(vi.OpSendReceive, []byte("next"))
					s.net.Run(5 * time.Second)
					if !next.done || next.status != 0 ||
						!(b.recvs[0].done && string(b.recvs[0].buf[:4]) == "next" || r.done) {
						t.Errorf("the next message: %v %v", next.done, next.status)
					}
					return
				}
				if a.broke != 1 || b.broke != 1 {
					t.Errorf("broken %d, %d", a.broke, b.broke)
				}
				if len(reasons) != 1 || reasons[iu.Class2Fail] == 0 {
					t.Errorf("reasons told: %v, want CLASS2_FAIL alone [FCVI-8.4-15]", reasons)
				}
			})
		}
	}
}

// TestFailedExchanges: a class 2 report concerns only the named Exchange, and only that Exchange's
// ports.
func TestFailedExchanges(t *testing.T) {
	connected := func(level iu.Reliability) (*sim, *fake, *[]sent) {
		s := newSim(t, simConfig{seed: 1, order: true, class: fc.Class2, class2: true})
		a, _ := s.connect(level)
		s.net.AddFault(&fabric.Fault{Do: fabric.Drop, Match: opcode(iu.SendRqst)})
		for range 2 {
			a.post(vi.OpSendReceive, []byte("x"))
		}
		s.net.Run(time.Millisecond)
		return s, a, s.record()
	}
	report := func(s *sim, a *fake, r *fc.Remote, f fc.Frame) {
		a.p.Failed(s.net.Now(), r, &f, 1)
		s.net.Run(time.Millisecond)
	}
	answer := func(op iu.Opcode, handle uint32) fc.Frame {
		h := iu.Header{Op: op, Handle: handle}
		return fc.Frame{Opt: h.Append(nil), Header: fc.Header{FCtl: fc.FCtlExchResponder, OXID: 0x4000}}
	}
	t.Run("FCVI-8.4-15", func(t *testing.T) {
		s, a, _ := connected(iu.Unreliable)
		first, second := a.c.tx.acks.at(0).oxid, a.c.tx.acks.at(1).oxid
		done := func() string { return fmt.Sprint(a.sends[0].done, a.sends[1].done, a.c.tx.acks.len()) }
		report(s, a, &fc.Remote{}, fc.Frame{Header: fc.Header{OXID: first}})
		report(s, a, a.c.remote, fc.Frame{Header: fc.Header{OXID: 0x4000}})
		if got := done(); got != "false false 2" {
			t.Errorf("reports of others: %s", got)
		}
		report(s, a, a.c.remote, fc.Frame{Header: fc.Header{OXID: second}})
		if got := done(); got != "false true 1" || a.sends[1].status != vi.StatusTransportError {
			t.Errorf("of the second: %s, %v", got, a.sends[1].status)
		}
		report(s, a, a.c.remote, fc.Frame{Header: fc.Header{OXID: first}})
		if got := done(); got != "true true 0" || a.sends[0].status != vi.StatusTransportError || a.broke != 0 {
			t.Errorf("of the first: %s, %v, broken %d", got, a.sends[0].status, a.broke)
		}
	})
	t.Run("FCVI-8.4-15 answers", func(t *testing.T) {
		s, a, all := connected(iu.ReliableReception)
		report(s, a, &fc.Remote{}, answer(iu.SendResp, a.c.rHandle))
		report(s, a, a.c.remote, answer(iu.SendResp, a.c.rHandle+1))
		report(s, a, a.c.remote, answer(iu.SendRqst, a.c.rHandle))
		report(s, a, a.c.remote, fc.Frame{Opt: []byte{1}, Header: fc.Header{FCtl: fc.FCtlExchResponder}})
		if a.broke != 0 {
			t.Error("broken by reports of others")
		}
		for range 2 { // the second report has no effect
			report(s, a, a.c.remote, answer(iu.SendResp, a.c.rHandle))
		}
		if got := ops(*all); a.broke != 1 || got != "DISCONNECT_RQST DISCONNECT_RESP" {
			t.Fatalf("broken %d, sent %s", a.broke, got)
		}
		if h := (*all)[0].h; h.Status().Reason != iu.Class2Fail || h.Flags&iu.FlagMsgID != 0 || h.MsgID != 0 {
			t.Errorf("%v", h)
		}
	})
	t.Run("FCVI-8.4-15 requests", func(t *testing.T) {
		s, a, _ := connected(iu.ReliableDelivery)
		ox := a.c.tx.acks.at(0).oxid
		rx := uint16(0)
		s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
			if from == a.p.end && f.RCtl == fc.RCtlABTS && f.OXID == ox {
				rx = f.RXID
			}
		})
		for range 2 {
			report(s, a, a.c.remote, fc.Frame{Header: fc.Header{OXID: ox}})
		}
		if a.broke != 1 || rx != fc.Unassigned || a.c.discHdr.Status().Reason != iu.Class2Fail ||
			a.c.discHdr.Flags&iu.FlagMsgID != 0 {
			t.Errorf("broken %d, ABTS with RX_ID %#x, told %v", a.broke, rx, a.c.discHdr)
		}
	})
}

// TestPieces: messages whose memory has several pieces arrive like others, and no byte is sent
// twice. [FCVI-5.2.5-5] [FCVI-5.1-3] [FCVI-8.4-1]
func TestPieces(t *testing.T) {
	const length = 30_000
	for _, level := range levels {
		for _, piece := range []int{1, 3000, 5001, 10_000} {
			s := newSim(t, simConfig{seed: 3, order: true})
			a, b := s.connect(level)
			a.piece, b.piece = piece, piece
			r := b.postRecv(length)
			b.mem = pattern(length, 2)
			a.post(vi.OpSendReceive, pattern(length, 1))
			s.net.Run(time.Second)
			if n := s.ports[0].stats.SentBytes; !r.done || !bytes.Equal(r.buf, pattern(length, 1)) || n != length {
				t.Errorf("%v, pieces of %d: received %v, %d bytes sent", level, piece, r.done, n)
			}
			if level == iu.Unreliable { // this level has no Reads
				continue
			}
			ius := s.ports[1].stats.SentIUs
			w := a.post(vi.OpRDMARead, make([]byte, length))
			s.net.Run(time.Second)
			if n := s.ports[1].stats.SentBytes; s.ports[1].stats.SentIUs-ius != 1 || !w.done ||
				w.status != 0 || !bytes.Equal(w.data, b.mem) || n != length ||
				b.c.traffic.SentBytes != length || b.c.traffic.ServedReads != 1 {
				t.Errorf("%v, pieces of %d: read %v, %v, %d bytes answered", level, piece, w.done, w.status, n)
			}
		}
	}
}

// TestReadPlaces: a peer may have MaxReads unanswered Reads, or a single Read if MaxReads is 0.
// Each Read is checked before the answer, and consumes no receive. [FCVI-5.2.4-2] [VIA-4.3-1]
func TestReadPlaces(t *testing.T) {
	for most, want := range []int{1, 1, 2, 3, 4} {
		s := newSim(t, simConfig{seed: 1, order: true})
		_, b := s.connect(iu.ReliableDelivery)
		b.c.attrs.MaxReads = uint16(most)
		b.postRecv(10)
		b.c.answers.add(answer{op: iu.SendResp}) // an answer that does not belong to a Read
		read := func(handle uint32) bool {
			h := iu.Header{Op: iu.ReadRqst, MsgID: 9, Flags: iu.FlagRspRqd, RmtHandle: handle, RmtVA: 1000, Total: 4}
			ok, fail := b.c.rx.serveRead(s.net.Now(), &rxMsg{h: h}, vi.Delivery{})
			b.c.fail(s.net.Now(), fail)
			return ok
		}
		for i := range want {
			if !read(7) || b.c.answers.len() != 2+i {
				t.Fatalf("at most %d: Read %d is refused", most, i+1)
			}
		}
		if b.broke != 0 || read(7) || b.broke != 1 {
			t.Errorf("at most %d: broken %d by %d Reads", most, b.broke, want+1)
		}
		if b.recvN != 0 {
			t.Errorf("at most %d: a receive was taken", most)
		}
	}
}

// TestSetupFits: a set-up IU carries security information only if the IU fits the peer's receive
// data field. [FCVI-6.8-4]
func TestSetupFits(t *testing.T) {
	room := 256 - iu.LongLen - iu.ConnectRqstLen
	for _, v := range []struct {
		client, server int
		want           iu.Reason
	}{{room, 0, iu.Confirmed}, {room + 1, 0, iu.NoResources}, {0, 256 - iu.LongLen - iu.ConnectResp1Len, iu.Confirmed}, {0, 256 - iu.LongLen - iu.ConnectResp1Len + 1, iu.NoResources}} {
		s := newSim(t, simConfig{seed: 1, order: true, rxSize: 256})
		all := s.record()
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		b.p.addWait(s.net.Now(), &wait{disc: []byte("x"), match: func(c *conn) {
			b.c, c.sec = c, make([]byte, v.server)
			c.accept(s.net.Now(), b.attrs(), b, false, b.result1)
		}})
		a.c = a.p.connect(s.net.Now(), connectArgs{mode: iu.ClientServer, local: a.net("me"),
			remote: b.net("x"), attrs: a.attrs(),
			security: make([]byte, v.client), deadline: fc.Never, up: a, done: a.result1})
		s.net.Run(time.Second)
		if len(a.result) != 1 || a.result[0] != v.want {
			t.Errorf("%d and %d bytes: %v", v.client, v.server, a.result)
		}
		for _, x := range *all {
			if n := len(x.f.Opt) + len(x.data); n > 256 {
				t.Errorf("%v of %d bytes", x.h.Op, n)
			}
		}
	}
}

// TestRetryEchoed: the answers to the second attempt of a set-up have the retry flag.
// [FCVI-5.9.4-8]
func TestRetryEchoed(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectRqst), Do: fabric.Drop, Nth: 1})
	all := s.record()
	s.connect(iu.ReliableDelivery)
	if got := ops(*all); got != "CONNECT_RQST CONNECT_RQST CONNECT_RESP1 CONNECT_RESP2 CONNECT_RESP3" {
		t.Fatal(got)
	}
	for i, x := range *all {
		if (x.h.Flags&iu.FlagRetry != 0) != (i > 0) || x.h.Flags.Mode() != iu.ClientServer {
			t.Errorf("%v: flags %02x", x.h.Op, uint8(x.h.Flags))
		}
	}
}

// TestSetupErrors: each reason of a failed set-up is returned as the matching error of package vi.
// [FCVI-5.9.7-6]
func TestSetupErrors(t *testing.T) {
	if err := setupError(iu.Confirmed); err != nil {
		t.Errorf("a set-up that was confirmed fails: %v", err)
	}
	for r, want := range map[iu.Reason]error{
		iu.NoMatch: vi.ErrNoMatch, iu.BadMode: vi.ErrNoMatch, iu.ULPReject: vi.ErrReject, iu.ULPTimeout: vi.ErrTimeout,
		iu.Stale: vi.ErrTimeout, iu.Cancelled: vi.ErrTimeout, iu.InvalidReliability: vi.ErrInvalidReliability,
		iu.InvalidMTS: vi.ErrInvalidMTU,
		iu.InvalidQoS: vi.ErrInvalidQoS, iu.InvalidRDMARead: vi.ErrInvalidRDMARead,
		iu.NoResources: vi.ErrResource, iu.BadState: vi.ErrInvalidState,
		iu.BadFormat: vi.ErrNotSupported, iu.AddressMismatch: vi.ErrNotReachable,
		notReachable: vi.ErrNotReachable, 0xfe: vi.ErrReject,
	} {
		if err := setupError(r); !errors.Is(err, want) ||
			strings.Contains(err.Error(), r.String()) != (r != notReachable) {
			t.Errorf("%v: %v, expected %v with the reason of the peer", r, err, want)
		}
	}
}

// TestCountedBytes: the counters include the bytes an RDMA Write places. [FCVI-5.2.3-1]
func TestCountedBytes(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	a, b := s.connect(iu.ReliableReception)
	w := a.post(vi.OpRDMAWrite, pattern(100, 1))
	if !s.net.RunUntil(time.Second, func() bool { return w.done }) || w.status != 0 {
		t.Fatalf("done %v, %v", w.done, w.status)
	}
	if got := s.ports[1].stats.PlacedBytes; got != 100 || b.c.traffic.ReceivedBytes != 100 {
		t.Errorf("%d bytes placed, %d received", got, b.c.traffic.ReceivedBytes)
	}
}

// TestLateConfirmation: only the side that sent the request handles a CONNECT_RESP3. [FCVI-5.3.2-9]
func TestLateConfirmation(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	_, b := s.connect(iu.ReliableDelivery)
	before := s.ports[1].stats.StaleResponses
	s.inject(0, iu.Header{Op: iu.ConnectResp3, Handle: b.c.handle, Total: b.c.own.id, MsgID: b.c.own.attempt}, nil, nil)
	s.net.Run(time.Second)
	if got := s.ports[1].stats.StaleResponses - before; got != 1 || b.c.state != stConnected {
		t.Errorf("%d counted, %v", got, b.c.state)
	}
}

// TestCounters: frames dropped without a report are counted.
func TestCounters(t *testing.T) {
	t.Run("FCVI-5.2.3-4", func(t *testing.T) { // the message finds no receive descriptor
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.connect(iu.Unreliable)
		b.c.holds = false
		a.post(vi.OpSendReceive, []byte("x"))
		s.net.Run(time.Second)
		if got := s.ports[1].stats; got.NoReceive != 1 || got.Discarded != 1 || b.broke != 0 ||
			len(b.asyncs) != 1 || b.asyncs[0] != vi.ErrorRecvQEmpty {
			t.Errorf("%d without a receive, %d discarded; broken %d, told %v", got.NoReceive,
				got.Discarded, b.broke, b.asyncs)
		}
	})
	t.Run("FCVI-5.2.5-2", func(t *testing.T) { // the answer is of another type than the request
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.connect(iu.ReliableReception)
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.SendResp), Do: fabric.Drop, Nth: 1})
		b.postRecv(10)
		w := a.post(vi.OpSendReceive, []byte("x"))
		s.net.Run(time.Millisecond)
		if w.done || a.c.tx.resp.pending.len() != 1 {
			t.Fatalf("done %v, %d pending", w.done, a.c.tx.resp.pending.len())
		}
		s.answer(a, iu.WriteResp, a.c.tx.resp.pending.at(0).id, 0, 0, nil, 0, true)
		if got := s.ports[0].stats.Synonyms; got != 1 || w.done || a.broke != 0 {
			t.Errorf("%d counted; done %v, broken %d", got, w.done, a.broke)
		}
		s.answer(a, iu.SendResp, a.c.tx.resp.pending.at(0).id, 0, 0, nil, 0, true)
		if !w.done || w.status != 0 {
			t.Errorf("the right answer behind it: done %v, %v", w.done, w.status)
		}
	})
}

// TestRXIDs: the responder takes RX_IDs from a separate pool, whose numbers wrap. A frame with an
// RX_ID keeps it.
func TestRXIDs(t *testing.T) {
	t.Run("FCVI-5.4-5", func(t *testing.T) { // [FCVI-5.2.1-9]
		p := new(port)
		fresh := &fc.Frame{Header: fc.Header{RXID: fc.Unassigned}}
		first := p.rxid(fresh)
		for n, used := 1, map[uint16]bool{first: true}; n <= iu.LastOXID; n++ {
			if id := p.rxid(fresh); used[id] || id > iu.LastOXID {
				t.Fatalf("RX_ID %#04x after %d others", id, n)
			} else {
				used[id] = true
			}
			if id := p.rxid(&fc.Frame{Header: fc.Header{RXID: 0x1234}}); id != 0x1234 {
				t.Fatalf("RX_ID %#04x in an answer on 0x1234", id)
			}
		}
		if id := p.rxid(fresh); id != first { // the ids of Exchanges that have ended are free
			t.Errorf("RX_ID %#04x after the last, want %#04x again", id, first)
		}
	})
}

// TestToldOnce: a message for an unknown handle is answered once in R_A_TOV.
func TestToldOnce(t *testing.T) {
	t.Run("FCVI-8.2-3", func(t *testing.T) {
		s := newSim(t, simConfig{seed: 1, order: true})
		s.connect(iu.ReliableDelivery)
		all := s.record()
		for n, pause := range []time.Duration{0, time.Millisecond, s.ports[1].np.RATOV() - 10*time.Millisecond, 20 * time.Millisecond} {
			s.net.Run(pause)
			s.inject(0, iu.Header{Handle: 0x00990001, Op: iu.SendRqst, MsgID: 1}, []byte("x"), nil)
			told := 0
			for _, x := range *all {
				if x.h.Op == iu.DisconnectRqst && x.h.Status().Reason == iu.NotConnected &&
					x.h.Flags == iu.FlagErr && x.h.Handle == 0 && x.h.RmtHandle == 0x00990001 {
					told++
				}
			}
			if want := 1 + n/3; told != want {
				t.Errorf("message %d: told %d times, want %d", n, told, want)
			}
		}
	})
	t.Run("FCVI-8.2-4", func(t *testing.T) { // [FCVI-8.2-3] an answer is not answered, and the table of told handles is bounded
		s := newSim(t, simConfig{seed: 1, order: true})
		s.connect(iu.ReliableDelivery)
		p := s.ports[1]
		was := len(p.told)
		s.inject(0, iu.Header{Op: iu.SendRqst, MsgID: 1}, []byte("x"), nil) // handle 0 is never valid
		s.inject(0, iu.Header{Handle: 0x00990001, Op: iu.SendResp, MsgID: 1}, nil, nil)
		if len(p.told) != was {
			t.Error("the sender of an answer was told")
		}
		for _, v := range []struct{ full, want int }{{1024, 1025}, {1025, 1}} {
			clear(p.told)
			for i := range v.full {
				p.told[tellKey{fc.Addr(i), 1}] = 0
			}
			s.inject(0, iu.Header{Handle: 0x00990001, Op: iu.SendRqst, MsgID: 1}, []byte("x"), nil)
			if len(p.told) != v.want {
				t.Errorf("%d senders are remembered behind %d, want %d", len(p.told), v.full, v.want)
			}
		}
	})
}

// TestHeldForAnother: a request of this side between other addresses does not answer a held
// request.
func TestHeldForAnother(t *testing.T) {
	t.Run("FCVI-5.3.3-2", func(t *testing.T) { // [FCVI-4-6]
		held := standing{"C_HELD", stHeld, func(c *conn) { c.up, c.done = nil, nil }}
		for _, v := range []struct {
			mode  iu.Mode // mode of the held request
			local string
			want  state
		}{{iu.PeerToPeer, "another", stHeld}, {iu.PeerToPeer, "me", stIdle}, {iu.ClientServer, "me", stHeld}} {
			local, want := v.local, v.want
			w := begin(t, v.mode, held)
			f := w.fake(0, iu.ReliableDelivery)
			w.c.p.connect(w.net.Now(), connectArgs{mode: iu.PeerToPeer, local: f.net(local),
				remote: w.c.want, attrs: f.attrs(), deadline: fc.Never, up: f, done: f.result1})
			if w.c.state != want || w.c.gone != (want == stIdle) {
				t.Errorf("%v, a request from %q: the one that was held is in state %v, want %v",
					v.mode, local, w.c.state, want)
			}
		}
	})
}

// TestOneExchange: a message has its own Exchange if the configuration requires one, if the message
// requests a response, and in class 2.
func TestOneExchange(t *testing.T) {
	t.Run("FCVI-5.2.1-1", func(t *testing.T) { // [FCVI-5.2.1-4]
		for _, v := range []struct {
			level  iu.Reliability
			stream bool
			class  fc.Class
			op     iu.Opcode
			own    bool
		}{
			{iu.ReliableDelivery, true, fc.Class3, iu.SendRqst, false},
			{iu.Unreliable, true, fc.Class3, iu.WriteRqst, false},
			{iu.ReliableDelivery, false, fc.Class3, iu.SendRqst, true},
			{iu.ReliableDelivery, true, fc.Class2, iu.SendRqst, true},
			{iu.ReliableDelivery, true, fc.Class3, iu.ReadRqst, true},
			{iu.ReliableReception, true, fc.Class3, iu.SendRqst, true},
		} {
			s := newSim(t, simConfig{seed: 1, order: true, stream: v.stream})
			a, _ := s.connect(v.level)
			a.c.class = v.class
			for range 2 {
				if !a.c.tx.exchange(s.net.Now(), &iu.Header{Op: v.op}) || a.c.tx.stream.open == v.own {
					t.Errorf("%+v: in a stream Exchange %v", v, a.c.tx.stream.open)
				}
			}
		}
	})
}
