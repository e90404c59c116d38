package fcvi

import (
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// resp1 answers f's request with a RESP1, as the peer's machine never would in the current state.
func (s *sim) resp1(f, from *fake, reason iu.Reason, payload []byte) {
	own := f.c.own
	h := iu.Header{Op: iu.ConnectResp1, Handle: f.c.handle, Flags: iu.PeerToPeer.Flags(),
		MsgID: own.attempt, Total: own.id,
		Param: iu.Status{Reason: reason}.Param()}
	if reason == iu.Accepted {
		h.Flags |= iu.FlagPos
	}
	i := 0
	if from.p == s.ports[1] {
		i = 1
	}
	s.inject(i, h, payload, func(x *fc.Frame) {
		x.OXID, x.RXID = own.oxid, 0x1234
		x.FCtl |= fc.FCtlExchResponder
	})
}

// connectedPeers checks that both requests ended in one working connection.
func connectedPeers(t *testing.T, s *sim, a, b *fake) {
	t.Helper()
	s.net.ClearFaults()
	if !s.net.RunUntil(9*time.Minute, func() bool { return len(a.result) > 0 && len(b.result) > 0 }) {
		t.Fatalf("%v %v, states %v %v", a.result, b.result, a.c.state, b.c.state)
	}
	s.net.Run(time.Minute)
	if a.c.state != stConnected || b.c.state != stConnected || a.c.rHandle != b.c.handle ||
		b.c.rHandle != a.c.handle || a.c.responder == b.c.responder {
		t.Fatalf("%v %v, states %v %v, responders %v %v", a.result, b.result, a.c.state, b.c.state,
			a.c.responder, b.c.responder)
	}
	ra, rb := a.postRecv(10), b.postRecv(10)
	a.post(vi.OpSendReceive, []byte("a"))
	b.post(vi.OpSendReceive, []byte("b"))
	s.net.Run(time.Second)
	if !ra.done || !rb.done {
		t.Error("nothing passes")
	}
}

// requests counts the requests sent by port i.
func requests(s *sim, all []sent, i int) (n int) {
	for _, x := range all {
		if x.h.Op == iu.ConnectRqst && x.from == s.ports[i].np.ID() {
			n++
		}
	}
	return n
}

// TestFCVI_5_3_4 injects responses that the state machine of package fcvi never sends in that state.
// Port b has the higher name, so its request wins.
func TestFCVI_5_3_4(t *testing.T) {
	t.Run("FCVI-5.3.4-5", func(t *testing.T) { // a winner that is told to yield repeats its request
		s := newSim(t, simConfig{seed: 1, order: true})
		all := s.record()
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		b.p.connectPeer(s, b, a)
		s.net.RunUntil(time.Second, func() bool { return requests(s, *all, 1) > 0 })
		s.net.Run(10 * time.Millisecond)
		if b.c.state != stRqst {
			t.Fatalf("state %v", b.c.state)
		}
		before := requests(s, *all, 1)
		s.resp1(b, a, iu.PeerYield, nil)
		if b.c.own.open || b.c.state != stRqst || requests(s, *all, 1) != before {
			t.Fatalf("open %v, state %v, %d requests after %d", b.c.own.open, b.c.state, requests(s, *all, 1), before)
		}
		s.net.Run(2 * b.p.np.EDTOV())
		if requests(s, *all, 1) <= before || !b.c.own.open {
			t.Fatalf("%d requests, open %v", requests(s, *all, 1), b.c.own.open)
		}
		a.p.connectPeer(s, a, b)
		connectedPeers(t, s, a, b)
	})
	t.Run("FCVI-5.3.4-9", func(t *testing.T) { // a loser whose request is accepted nevertheless remains the loser
		s := newSim(t, simConfig{seed: 1, order: true})
		all := s.record()
		a, b := s.fake(0, iu.ReliableDelivery), s.fake(1, iu.ReliableDelivery)
		// At first a's acceptance does not reach b, and b's yield does not reach a.
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectResp1), Do: fabric.Drop, Nth: 1})
		s.net.AddFault(&fabric.Fault{Match: opcode(iu.ConnectResp1), Do: fabric.Drop, Nth: 2})
		a.p.connectPeer(s, a, b)
		b.p.connectPeer(s, b, a)
		s.net.Run(time.Millisecond)
		if a.c.state != stResp1 || !a.c.own.open || b.c.state != stRqst {
			t.Fatalf("states %v %v, open %v: %s", a.c.state, b.c.state, a.c.own.open, ops(*all))
		}
		mark := len(*all)
		own := a.c.own
		payload := b.p.cfg.codec.AppendConnectResp1(nil,
			&iu.AcceptPayload{Handle: b.c.handle, Local: b.c.local, Attributes: b.c.attrs})
		s.resp1(a, b, iu.Accepted, payload)
		cancelled := false
		for _, x := range (*all)[mark:] {
			if x.from == a.p.np.ID() && x.h.Op == iu.ConnectResp2 && x.f.OXID == own.oxid {
				cancelled = x.h.Status().Reason == iu.Cancelled && x.f.FCtl&fc.FCtlLastSeq != 0
			}
		}
		if !cancelled || a.c.own.open || a.c.state != stResp1 {
			t.Errorf("cancelled %v, open %v, state %v: %s", cancelled, a.c.own.open, a.c.state, ops((*all)[mark:]))
		}
		connectedPeers(t, s, a, b)
		if !a.c.responder {
			t.Error("it is the originator")
		}
	})
}
