package fcvi

import (
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// provers connects two fakes with support for probes.
func (s *sim) provers(level iu.Reliability) (a, b *fake) {
	a, b = s.connect(level)
	for _, f := range []*fake{a, b} {
		f.c.attrs.Proves, f.c.rattrs.Proves = true, true
	}
	return a, b
}

// TestProbe: a probe detects the loss of the last message. [FCVI-3-4] [FCVI-8.4-10]
func TestProbe(t *testing.T) {
	const soon = 4 * fc.DefaultEDTOV
	for _, order := range []bool{true, false} {
		name := map[bool]string{true: "in order", false: "out of order"}[order]
		t.Run(name+"/nothing lost", func(t *testing.T) {
			s := newSim(t, simConfig{seed: 1, order: order})
			a, b := s.provers(iu.ReliableDelivery)
			all := s.record()
			for range 3 {
				b.postRecv(10)
				a.post(vi.OpSendReceive, []byte("x"))
			}
			s.net.Run(time.Minute)
			if got := ops(*all); got != "SEND_RQST SEND_RQST SEND_RQST READ_RQST READ_RESP" {
				t.Error(got) // one probe serves all messages, and no second probe follows
			}
			if a.broke+b.broke != 0 || a.c.tx.resp.pending.len() != 0 || a.c.tx.resp.reads != 0 || a.c.tx.proof.timer.Active() {
				t.Errorf("broken %d, %d; %d pending", a.broke, b.broke, a.c.tx.resp.pending.len())
			}
			if n := b.c.traffic; n.ServedReads != 0 || n.ReceivedMessages != 3 {
				t.Errorf("%d Reads served, %d messages received: a probe counts as a message", n.ServedReads, n.ReceivedMessages)
			}
		})
		for _, lost := range []iu.Opcode{iu.SendRqst, iu.ReadRqst, iu.ReadResp} {
			t.Run(name+"/"+lost.String()+" lost", func(t *testing.T) {
				s := newSim(t, simConfig{seed: 1, order: order})
				a, b := s.provers(iu.ReliableDelivery)
				fault := s.net.AddFault(&fabric.Fault{Match: opcode(lost), Do: fabric.Drop, Nth: 1})
				r := b.postRecv(10)
				a.post(vi.OpSendReceive, []byte("x"))
				s.net.Run(soon)
				bad := lost == iu.SendRqst
				if fault.Done != 1 || (a.broke == 1) != bad || (b.broke == 1) != bad ||
					!bad && (!r.done || r.d.Status != 0) {
					t.Errorf("broken %d, %d; received %v %+v; faults %d", a.broke, b.broke, r.done, r.d, fault.Done)
				}
				if late := s.ports[1].stats.LateFrames; late != 0 {
					t.Errorf("%d frames late: a probe that is answered again is not", late) // [FCVI-8.4-2]
				}
				if !bad && a.c.tx.resp.pending.len() != 0 {
					t.Error("the probe was not repeated, or not answered again")
				}
			})
		}
	}
	t.Run("drain", func(t *testing.T) { // valid messages before a bad descriptor complete with success
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.provers(iu.ReliableReception)
		for range 5 {
			b.postRecv(10)
		}
		a.c.early.paused = true
		for i := range 6 {
			a.post(vi.OpSendReceive, []byte("x")).bad = i == 5
		}
		a.c.early.paused = false
		a.c.posted(s.net.Now())
		s.net.Run(time.Second)
		for i, w := range a.sends {
			if !w.done || (w.status == 0) != (i < 5) {
				t.Errorf("send %d: %v, %v", i, w.done, w.status)
			}
		}
		if a.broke != 1 || b.broke != 1 {
			t.Errorf("broken %d, %d", a.broke, b.broke)
		}
	})
}
