package fcvi

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// heldUp is how long TCP may delay frames after a link was down for less than half of heldUp,
// because TCP doubles its pauses between retransmissions.
const heldUp = 20 * time.Second

// TestHeldUp: if a link is delayed in the middle of a message, for longer than E_D_TOV and less
// than FCVI_ULP_TIMEOUT, the connection survives. [FCVI-8.4-10]
func TestHeldUp(t *testing.T) {
	const length = 40_000 // 20 frames
	for _, op := range []vi.Control{vi.OpSendReceive, vi.OpRDMAWrite, vi.OpRDMARead} {
		for _, level := range levels {
			if op == vi.OpRDMARead && level == iu.Unreliable {
				continue
			}
			t.Run(fmt.Sprintf("%v, %v", op, level), func(t *testing.T) {
				s := newSim(t, simConfig{seed: 3, order: true})
				a, b := s.provers(level)
				r := b.postRecv(length)
				copy(b.mem, pattern(length, 1))
				data, from := pattern(length, 2), 0
				ius := map[vi.Control]iu.Opcode{vi.OpSendReceive: iu.SendRqst, vi.OpRDMAWrite: iu.WriteRqst, vi.OpRDMARead: iu.ReadResp}[op]
				if op == vi.OpRDMARead {
					from = 1
				}
				w := a.post(op, data)
				got := 0
				s.net.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { // a fault without an effect serves to count frames
					if opcode(ius)(f) {
						if got++; got == 9 {
							s.ports[from].end.Delay += heldUp
						}
					}
					return false
				}})
				s.net.Run(heldUp / 2)
				if got < 9 || op == vi.OpRDMARead && w.done || r.done ||
					op == vi.OpRDMAWrite && bytes.Equal(b.mem[:length], data) {
					t.Fatalf("nothing is held up: %d frames", got)
				}
				s.net.Run(heldUp)
				s.ports[from].end.Delay = 0
				s.net.Run(time.Second)
				want, have := data, b.mem[:length]
				if op == vi.OpSendReceive {
					have = r.buf
				}
				if a.broke+b.broke != 0 || !w.done || w.status != 0 || !bytes.Equal(have, want) {
					t.Errorf("broken %d, %d; done %v, %v; right %v", a.broke, b.broke, w.done,
						w.status, bytes.Equal(have, want))
				}
			})
		}
	}
}

// TestSlow: an answer may take longer than FCVI_ULP_TIMEOUT because the answer is long, or because
// of the answers before it. Such an answer does not count as lost. [FCVI-8.4-12]
func TestSlow(t *testing.T) {
	const n, length = 4, 40_000 // the answers have 20 frames each
	s := newSim(t, simConfig{seed: 3, order: true})
	a, b := s.provers(iu.ReliableReception)
	copy(b.mem, pattern(length, 1))
	s.ports[1].end.Frame = time.Second
	begin := s.net.Now()
	for range n {
		a.post(vi.OpRDMARead, make([]byte, length))
	}
	s.net.RunUntil(10*n*20*time.Second, func() bool { return a.sends[n-1].done })
	if took := s.net.Now() - begin; took < 2*defaultULPTimeout {
		t.Fatalf("all in %v: it is not slow", took)
	}
	for i, w := range a.sends {
		if !w.done || w.status != 0 || !bytes.Equal(w.data, b.mem[:length]) {
			t.Errorf("read %d: %v, %v", i, w.done, w.status)
		}
	}
	if a.broke+b.broke != 0 {
		t.Errorf("broken %d, %d", a.broke, b.broke)
	}
}

// TestProbeAnswered: a loss before a requested answer is detected as soon as a loss without a
// requested answer, and not only after FCVI_ULP_TIMEOUT. [FCVI-3-4]
func TestProbeAnswered(t *testing.T) {
	for _, lost := range []iu.Opcode{iu.SendRqst, iu.SendResp, iu.ReadRqst, iu.ReadResp} {
		t.Run(lost.String(), func(t *testing.T) {
			s := newSim(t, simConfig{seed: 1, order: true})
			a, b := s.provers(iu.ReliableReception)
			all := s.record()
			fault := s.net.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { return opcode(lost)(f) && f.Last() },
				Do: fabric.Drop, Nth: 1})
			b.postRecv(5000)
			op := vi.OpSendReceive
			if lost == iu.ReadRqst || lost == iu.ReadResp {
				op = vi.OpRDMARead
			}
			w := a.post(op, pattern(5000, 1))
			s.net.Run(fc.DefaultEDTOV - time.Millisecond)
			if fault.Done != 1 || w.done || bytes.Count([]byte(ops(*all)), []byte("READ_RQST")) > 1 {
				t.Fatalf("before E_D_TOV: %s", ops(*all))
			}
			s.net.Run(time.Second)
			if !w.done || w.status&vi.StatusTransportError == 0 || a.broke != 1 || b.broke != 1 {
				t.Errorf("done %v, %v; broken %d, %d", w.done, w.status, a.broke, b.broke)
			}
		})
	}
	t.Run("nothing lost", func(t *testing.T) { // the answer proves the delivery, so no probe is sent
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.provers(iu.ReliableReception)
		all := s.record()
		b.postRecv(10)
		a.post(vi.OpSendReceive, []byte("x"))
		s.net.Run(time.Minute)
		if got := ops(*all); got != "SEND_RQST SEND_RESP" {
			t.Error(got)
		}
	})
	t.Run("slow", func(t *testing.T) { // a slow answer is requested again and arrives
		s := newSim(t, simConfig{seed: 1, order: true})
		a, b := s.provers(iu.ReliableReception)
		b.c.holds = true
		w := a.post(vi.OpSendReceive, []byte("x"))
		s.net.Run(5 * fc.DefaultEDTOV)
		if w.done || a.broke+b.broke != 0 {
			t.Fatalf("done %v; broken %d, %d", w.done, a.broke, b.broke)
		}
		b.postRecv(10)
		s.net.Run(time.Second)
		if !w.done || w.status != 0 || a.broke+b.broke != 0 || a.c.tx.resp.pending.len() != 0 {
			t.Errorf("done %v, %v; broken %d, %d; %d pending", w.done, w.status, a.broke, b.broke, a.c.tx.resp.pending.len())
		}
	})
}
