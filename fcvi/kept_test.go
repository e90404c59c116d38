package fcvi

import (
	"bytes"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// TestVerifiedMeanwhile checks that a state change during a set-up or an end of a connection delays
// it only by the verification and not by a time-out, because the IUs are kept meanwhile. Such a
// state change occurs whenever the fabric announces a new port later than the port itself does.
// [FCVI-7.7-6] [FCVI-5.1-7]
func TestVerifiedMeanwhile(t *testing.T) {
	const slow = 30 * time.Millisecond
	// announce reports a change of the other port to port i, whose query to the directory is slow.
	announce := func(s *sim, i int) {
		name := s.ports[i].np.ID()
		s.net.AddFault(&fabric.Fault{Nth: 1, Do: fabric.Delay, Late: slow, Match: func(f *fc.Frame) bool {
			return f.Type == fc.TypeCT && f.RCtl == fc.RCtlUnsolControl && f.SID == name
		}})
		p := s.ports[1-i]
		var types fc.FC4Map
		types.Set(fc.TypeFCVI)
		p.np.Query(s.net.Now(), fc.NSRFTID, fc.NSBody{}.ID(p.np.ID()).Bytes(types[:]...),
			func(fc.Time, []byte, error) {})
		r := s.ports[i].np.RemoteByName(p.np.Name())
		if !s.net.RunUntil(slow/2, func() bool { return r != nil && !r.Ready() }) {
			t.Fatalf("port %d does not verify", i)
		}
	}
	for i, side := range []string{"originator", "responder"} {
		t.Run(side, func(t *testing.T) {
			s := newSim(t, simConfig{seed: 5, order: true})
			x, _ := s.connect(iu.ReliableReception) // a connection ensures that the ports are logged in
			x.c.disconnect(s.net.Now())
			s.net.Run(time.Second)
			all := s.record()
			announce(s, i)
			begin := s.net.Now()
			a, b := s.connect(iu.ReliableReception)
			if took := s.net.Now() - begin; took > 2*slow {
				t.Errorf("set up in %v", took)
			}
			if got := ops(*all); got != "CONNECT_RQST CONNECT_RESP1 CONNECT_RESP2 CONNECT_RESP3" {
				t.Error(got)
			}
			announce(s, i)
			r := b.postRecv(10)
			w := a.post(vi.OpSendReceive, pattern(10, 1))
			if !s.net.RunUntil(2*slow, func() bool { return w.done && r.done }) {
				t.Errorf("a message does not come: %v, %v", w.done, r.done)
			}
			announce(s, i)
			[]*fake{a, b}[i].c.disconnect(s.net.Now())
			if !s.net.RunUntil(2*slow, func() bool { return a.c.gone && b.c.gone }) {
				t.Errorf("disconnected: %v, %v", a.c.state, b.c.state)
			}
			if n := len(s.ports[i].kept); n != 0 {
				t.Errorf("%d IUs kept for ever", n)
			}
		})
	}
	t.Run("given up", func(t *testing.T) { // an IU kept for an abandoned Exchange is never sent
		s := newSim(t, simConfig{seed: 5, order: true})
		x, _ := s.connect(iu.ReliableReception)
		all := s.record()
		announce(s, 0)
		p, r := s.ports[0], x.c.remote
		before := p.stats.SentIUs
		h := iu.Header{Op: iu.DisconnectRqst, Handle: 1}
		for ox := range uint16(maxKept + 1) {
			if ok := p.sendIU(s.net.Now(), r, fc.Class3, &h, iu.Use{Last: true}, ox, fc.Unassigned, 0, nil); ok != (ox < maxKept) {
				t.Fatalf("IU %d kept: %v", ox, ok)
			}
		}
		if n := p.stats.SentIUs - before; n != maxKept {
			t.Errorf("%d IUs are counted", n)
		}
		for ox := range uint16(maxKept) {
			p.oxids.abort(s.net.Now(), r, fc.Class3, ox, fc.Unassigned)
		}
		s.net.Run(time.Second)
		if got := ops(*all); got != "" || len(p.kept) != 0 {
			t.Errorf("sent %q, %d kept", got, len(p.kept))
		}
	})
	t.Run("logged out", func(t *testing.T) { // [FCVI-7.7-2] [FCFS-2.10-7]
		s := newSim(t, simConfig{seed: 5, order: true})
		x, _ := s.connect(iu.ReliableReception)
		announce(s, 0)
		x.c.disconnect(s.net.Now())
		p := s.ports[0]
		if len(p.kept) != 1 {
			t.Errorf("%d kept", len(p.kept))
		}
		p.np.Logout(s.net.Now(), x.c.remote)
		if len(p.kept) != 0 {
			t.Errorf("%d kept for a port that is logged out", len(p.kept))
		}
	})
}

// TestSentBehindFailed checks that at Unreliable Delivery a message whose memory was deregistered
// before sending does not delay later messages. [FCVI-3-6]
func TestSentBehindFailed(t *testing.T) {
	s := newSim(t, simConfig{seed: 6, order: true})
	a, b := s.connect(iu.Unreliable)
	r := b.postRecv(10)
	a.sends = append(a.sends,
		&fakeSend{ctl: vi.OpSendReceive, data: pattern(10, 1), gone: true},
		&fakeSend{ctl: vi.OpSendReceive, data: pattern(10, 2)})
	a.c.posted(s.net.Now())
	if !s.net.RunUntil(time.Second, func() bool { return a.sends[1].done && r.done }) {
		t.Fatalf("the message behind: sent %v, received %v", a.sends[1].done, r.done)
	}
	if got := a.sends[0].status; got != vi.StatusProtectionError {
		t.Errorf("the first ends with %v", got)
	}
	if !bytes.Equal(r.buf, pattern(10, 2)) {
		t.Error("something else came")
	}
}
