package fcvi

import (
	"bytes"
	"flag"
	"fmt"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// TestLoginUnderNoise: on fabrics losing, duplicating and reordering frames of every kind, set-up
// takes longer but succeeds.
func TestLoginUnderNoise(t *testing.T) {
	for seed := range uint64(60) {
		s := newSimNoise(t, simConfig{seed: seed}, fabric.Noise{Loss: 0.03, Duplicate: 0.05,
			Reorder: 0.1, MaxDelay: 50 * time.Microsecond})
		a, b := s.fake(0, iu.ReliableReception), s.fake(1, iu.ReliableReception)
		s.serve(b, "disc")
		s.dial(a, b, "disc", iu.ClientServer)
		if !s.net.RunUntil(20*time.Minute, func() bool { return len(a.result) > 0 }) {
			t.Fatalf("seed %d: no result; a %v b state %v; ports %v %v, topology %v", seed,
				a.c.state, b.result, s.ports[0].np.State(), s.ports[1].np.State(), s.ports[0].np.Topology())
		}
		if a.result[0] != iu.Confirmed {
			t.Errorf("seed %d: %v", seed, a.result[0])
		}
	}
}

// A conversation is a connection from set-up to end, with messages of each kind. A test injects
// faults into it.
type conversation struct {
	mode  iu.Mode
	level iu.Reliability
	cfg   simConfig
}

func (v conversation) String() string {
	order := "out of order"
	if v.cfg.order {
		order = "in order"
	}
	if v.cfg.class == fc.Class2 {
		order += ", class 2"
	}
	return fmt.Sprintf("%v, %v, %s", v.mode, v.level, order)
}

// run plays the conversation under faults, and checks the conditions that hold for every outcome.
// It returns the number of FC-VI frames the ports sent.
func (v conversation) run(t *testing.T, faults ...*fabric.Fault) int {
	s := newSim(t, v.cfg)
	s.net.RunUntil(time.Second, func() bool { return false })
	n := 0
	s.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
		if from.Faulty && f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() {
			n++
		}
	})
	for _, f := range faults {
		f.Match = func(f *fc.Frame) bool { return f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() }
		s.net.AddFault(f)
	}
	a, b := s.fake(0, v.level), s.fake(1, v.level)
	for i := range 8 {
		b.postRecv(9000 + i)
		a.postRecv(9000 + i)
	}
	if v.mode == iu.ClientServer {
		s.serve(b, "disc")
		s.dial(a, b, "disc", v.mode)
	} else {
		a.p.connectPeer(s, a, b)
		b.p.connectPeer(s, b, a)
	}
	ready := func(f *fake) bool { return f.c != nil && f.c.state == stConnected }
	s.net.RunUntil(15*time.Minute, func() bool { return ready(a) && ready(b) || len(a.result) > 0 && !ready(a) })
	payload := [][]byte{pattern(10, 1), pattern(5000, 2), pattern(0, 3)}
	talk := func(f *fake) {
		for _, p := range payload {
			f.post(vi.OpSendReceive, p)
		}
		f.postImm(vi.OpRDMAWrite|vi.Immediate, pattern(3000, 9), 77)
		if v.level != iu.Unreliable {
			f.post(vi.OpRDMARead, make([]byte, 2500))
		}
	}
	if ready(a) {
		talk(a)
		s.net.Run(10 * time.Millisecond)
		if ready(b) {
			talk(b)
		}
		s.net.Run(5 * time.Minute)
		if ready(a) {
			a.c.disconnect(s.net.Now())
		}
	}
	s.net.Run(10 * time.Minute)
	// With four attempts, no two faults can make a set-up fail. With three tries, no two faults can
	// keep a disconnect from arriving.
	if len(a.result) != 1 || a.result[0] != iu.Confirmed || len(b.result) != 1 || b.result[0] != iu.Confirmed {
		t.Errorf("set-ups ended with %v, %v", a.result, b.result)
	}
	if ready(a) || ready(b) {
		t.Errorf("after the disconnect: %v, %v", a.c.state, b.c.state)
	}
	// A still connected end detects the loss of its peer by sending.
	for range 2 {
		for _, f := range []*fake{a, b} {
			if ready(f) && f.c.up != nil {
				f.post(vi.OpSendReceive, []byte("still there?"))
			}
		}
		s.net.Run(10 * time.Minute)
	}
	s.check(v, a, b, payload)
	return n
}

func (p *simPort) connectPeer(s *sim, f, to *fake) {
	f.c = p.connect(s.net.Now(), connectArgs{mode: iu.PeerToPeer, local: f.net("peer"),
		remote: to.net("peer"), attrs: f.attrs(),
		deadline: s.net.Now() + 10*time.Minute, up: f, done: f.result1})
}

// check verifies the end of a conversation. Every set-up was answered once, and every machine is in
// a final state. The delivered messages are the sent ones, in order, at most once, and without
// holes at the reliable levels.
func (s *sim) check(v conversation, a, b *fake, payload [][]byte) {
	t := s.t
	for name, f := range map[string]*fake{"a": a, "b": b} {
		if len(f.result) > 1 {
			t.Errorf("%s: outcomes %v", name, f.result)
		}
		if f.c == nil {
			continue
		}
		if len(f.result) == 0 && f.c.gone {
			t.Errorf("%s: its set-up has no outcome", name)
		}
		if !f.c.gone {
			t.Errorf("%s: ends in %v", name, f.c.state)
		}
		other := b
		if f == b {
			other = a
		}
		// Each delivery must be the next message the other end sent.
		next, ends := 0, false
		for _, r := range f.recvs {
			if !r.done {
				continue
			}
			if r.d.Status != 0 {
				ends = true
				continue
			}
			if ends && v.level != iu.Unreliable {
				t.Errorf("%s: a message after an error", name) // [FCVI-3-10]
			}
			found := -1
			for k := next; k < 4; k++ {
				if k == 3 && r.d.RemoteWrite && r.d.Data == 77 && bytes.Equal(f.mem[:3000], pattern(3000, 9)) ||
					k < 3 && !r.d.RemoteWrite && bytes.Equal(r.buf[:r.d.Length], payload[k]) {
					found = k
					break
				}
			}
			switch {
			case !r.d.RemoteWrite && string(r.buf[:r.d.Length]) == "still there?":
			case found < 0: // [FCVI-3-1] [FCVI-3-2]
				t.Errorf("%s: delivery of %d bytes after message %d, which was not sent then", name, r.d.Length, next)
			case found > next && v.level != iu.Unreliable: // [FCVI-3-4]
				t.Errorf("%s: message %d delivered, %d is missing", name, found, next)
			default:
				next = found + 1
			}
		}
		// At Reliable Reception a successful send means that the message was delivered.
		for k, w := range other.sends {
			if k < 4 && v.level == iu.ReliableReception && w.done && w.status == 0 && next <= k {
				t.Errorf("%s: message %d was reported delivered and was not", name, k) // [FCVI-3-7]
			}
			if w.ctl.Op() == vi.OpRDMARead && w.done && w.status == 0 && !bytes.Equal(w.data, f.mem[:len(w.data)]) {
				t.Errorf("%s: a read brought something else", name)
			}
		}
	}
	for i, p := range s.ports {
		if n := p.oxids.used + len(p.handles.conns) + len(p.setups); n != 0 {
			t.Errorf("port %d keeps %d exchanges, %d endpoints, %d set-ups", i, p.oxids.used,
				len(p.handles.conns), len(p.setups))
		}
	}
}

var campaign = func() (all []conversation) {
	for _, mode := range []iu.Mode{iu.ClientServer, iu.PeerToPeer} {
		for _, level := range levels {
			for _, order := range []bool{true, false} {
				all = append(all, conversation{mode, level, simConfig{seed: 1, order: order}})
			}
		}
	}
	return append(all, conversation{iu.ClientServer, iu.ReliableDelivery,
		simConfig{seed: 1, order: true, class: fc.Class2, class2: true}})
}()

// injuries returns the faults for an IU: loss, an immediate or late duplicate, a delay beyond each
// timer, and damage. [FCVI 8.3]
func injuries() []fabric.Fault {
	return []fabric.Fault{
		{Do: fabric.Drop}, {Do: fabric.Duplicate}, {Do: fabric.Duplicate, Late: 3 * time.Second},
		{Do: fabric.Delay, Late: 100 * time.Microsecond},
		{Do: fabric.Delay, Late: 2500 * time.Millisecond}, // longer than E_D_TOV and T_GAP
		{Do: fabric.Delay, Late: 11 * time.Second},        // longer than R_A_TOV, T_RESP3 and T_DISC
		{Do: fabric.Delay, Late: 21 * time.Second},        // longer than T_RQST
		{Do: fabric.Delay, Late: 31 * time.Second},        // longer than FCVI_ULP_TIMEOUT
		{Do: fabric.Corrupt}, {Do: fabric.Truncate},
	}
}

// TestCampaignSingle applies every fault to every IU of every exchange, one at a time. [FCVI-8.5-1]
// [FCVI-8.6-1] [FCVI-C-2] [FCVI-C-3] [FCVI-C-5] [FCVI-D-1] [FCVI-A-4] [FCVI-A-5]
func TestCampaignSingle(t *testing.T) {
	for _, v := range campaign {
		t.Run(v.String(), func(t *testing.T) {
			n := v.run(t)
			turn := 0
			for _, injury := range injuries() {
				for k := 1; k <= n; k++ {
					if turn++; (raceEnabled || !testkit.LongRuns()) && turn%7 != 0 {
						continue // the machines are single-threaded, so the race detector would find little
					}
					f := injury
					f.Nth = k
					if !t.Run(fmt.Sprintf("%v %v of IU %d", f.Do, f.Late, k), func(t *testing.T) { v.run(t, &f) }) &&
						!testkit.LongRuns() {
						return
					}
				}
			}
		})
	}
}

// fullCampaign makes TestCampaignPairs run all pairs, some 60 000 conversations. Otherwise the test
// runs every ninth pair, and still combines every IU with every fault.
var fullCampaign = flag.Bool("fcvi.campaign", false, "play every pair of the fault campaign")

// TestCampaignPairs applies faults to two IUs of a conversation. [FCVI-8.4-7] [FCVI-3-10]
func TestCampaignPairs(t *testing.T) {
	turn, stride := 0, 9
	if raceEnabled || !testkit.LongRuns() {
		stride = 97
	}
	pair := []fabric.Fault{{Do: fabric.Drop}, {Do: fabric.Duplicate, Late: 3 * time.Second},
		{Do: fabric.Delay, Late: 11 * time.Second}}
	for _, v := range campaign {
		t.Run(v.String(), func(t *testing.T) {
			n := v.run(t)
			for _, x := range pair {
				for _, y := range pair {
					for i := 1; i <= n; i++ {
						for k := i + 1; k <= n; k++ {
							if turn++; turn%stride != 0 && !*fullCampaign {
								continue
							}
							f, g := x, y
							f.Nth, g.Nth = i, k
							v.run(t, &f, &g)
							if t.Failed() {
								t.Fatalf("%v %v of IU %d, %v %v of IU %d", x.Do, x.Late, i, y.Do, y.Late, k)
							}
						}
					}
				}
			}
		})
	}
}

// TestSameSeed: two runs with the same seed are equal. [FCFS-3.2-3]
func TestSameSeed(t *testing.T) {
	run := func(seed uint64) fabric.NetStats {
		s := newSimNoise(t, simConfig{seed: seed}, fabric.Noise{Loss: 0.02, Duplicate: 0.05,
			Reorder: 0.1, Corrupt: 0.02, MaxDelay: time.Millisecond})
		a, b := s.fake(0, iu.Unreliable), s.fake(1, iu.Unreliable)
		s.serve(b, "x")
		s.dial(a, b, "x", iu.ClientServer)
		s.net.RunUntil(10*time.Minute, func() bool { return len(a.result) > 0 })
		for i := range 200 {
			b.postRecv(3000)
			a.post(vi.OpSendReceive, pattern(i*13, i))
		}
		s.net.Run(time.Minute)
		return s.net.Stats()
	}
	x, y, z := run(5), run(5), run(6)
	if x != y {
		t.Errorf("%+v, then %+v", x, y)
	}
	if x == z || x.Dropped == 0 || x.Duplicated == 0 || x.Delayed == 0 || x.BadCRC == 0 {
		t.Errorf("%+v", x)
	}
}

// TestConfig checks the limits and the defaults of a Config. [FCVI-5.7-5] [FCVI-7.2-4] [FCFS-2.7-2]
// [FCVI-5.7-4]
func TestConfig(t *testing.T) {
	for _, c := range []Config{{MaxTransferSize: LimitMaxTransfer + 1}, {RxSize: 252}, {RxSize: 2116}, {RxSize: 1025}, {MaxReads: 65}, {MaxUnacked: limitMaxUnacked + 1}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	n := openNIC(t, Config{})
	if q := n.Query(); q.MaxTransferSize != 1<<20 || q.MaxDiscriminatorLen != 64 {
		t.Errorf("%+v", q)
	}
	// Even with the smallest frames a message fits one Sequence.
	s := newSim(t, simConfig{seed: 1, order: true, rxSize: 256})
	a := s.fake(0, iu.ReliableDelivery)
	b := s.fake(1, iu.ReliableDelivery)
	s.serve(b, "x")
	big := a.attrs()
	big.MaxTransfer = LimitMaxTransfer
	a.c = a.p.connect(s.net.Now(), connectArgs{mode: iu.ClientServer, local: a.net("me"),
		remote: b.net("x"), attrs: big, deadline: fc.Never, up: a, done: a.result1})
	s.net.Run(time.Second)
	if want := uint32(fc.MaxSeqCount * (256 - iu.LongLen)); b.c == nil || b.c.rattrs.MaxTransfer != want {
		t.Errorf("offered %d, want %d", b.c.rattrs.MaxTransfer, want)
	}
}

// TestLossyTraffic sends random messages, at all levels, over fabrics that lose 1% of the frames
// and duplicate and reorder others. Messages arrive unchanged, in order, and at most once. At the
// reliable levels a hole ends the connection, and the test connects again; in class 2 the hole is
// filled. [FCVI-3-1] [FCVI-3-2] [FCVI-3-4] [FCVI-3-5] [FCVI-8.4-10]
func TestLossyTraffic(t *testing.T) {
	for _, class := range []fc.Class{fc.Class3, fc.Class2} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("class %d/%v", class, level), func(t *testing.T) { lossyTraffic(t, class, level) })
		}
	}
}

func lossyTraffic(t *testing.T, class fc.Class, level iu.Reliability) {
	recovers := class == fc.Class2 && level != iu.Unreliable
	broken, good := 0, 0
	for seed := range uint64(40) {
		s := newSim(t, simConfig{seed: seed, class: class, class2: class == fc.Class2})
		s.net.SetNoise(fabric.Noise{Loss: 0.01, Duplicate: 0.02, Reorder: 0.05, Corrupt: 0.002,
			MaxDelay: 50 * time.Microsecond})
		for round := range 4 {
			a, b := s.fake(0, level), s.fake(1, level)
			s.serve(b, fmt.Sprint(round))
			s.dial(a, b, fmt.Sprint(round), iu.ClientServer)
			s.net.RunUntil(10*time.Minute, func() bool { return len(a.result) > 0 && len(b.result) > 0 })
			if len(a.result) == 0 || a.result[0] != iu.Confirmed || b.c == nil || b.c.state != stConnected {
				t.Errorf("seed %d: set-up %v %v", seed, a.result, b.result)
				continue
			}
			for i := range 30 {
				b.postRecv(6000)
				a.post(vi.OpSendReceive, pattern(4+i*197%5990, int(seed)+i))
				s.net.Run(50 * time.Microsecond)
			}
			s.net.Run(2 * time.Minute)
			next := 0
			for _, r := range b.recvs {
				if !r.done || r.d.Status != 0 {
					continue
				}
				k := next
				for k < 30 && !bytes.Equal(r.buf[:r.d.Length], a.sends[k].data) {
					k++
				}
				if k == 30 || level != iu.Unreliable && k != next {
					t.Fatalf("seed %d: after message %d came something else (%d)", seed, next-1, k)
				}
				next = k + 1
				good++
			}
			ok := a.broke == 0 && b.broke == 0
			if (level == iu.ReliableReception || recovers) && ok && next != 30 {
				t.Errorf("seed %d: %d messages without a report", seed, next)
			}
			if level == iu.Unreliable && !ok {
				t.Errorf("seed %d: a loss broke the connection", seed)
			}
			for i, w := range a.sends {
				if (level == iu.ReliableReception || recovers) && w.done && w.status == 0 && i >= next {
					t.Errorf("seed %d: message %d was reported delivered", seed, i)
				}
			}
			if !ok {
				broken++
			}
			a.c.disconnect(s.net.Now())
			s.net.Run(2 * time.Minute)
			if !a.c.gone {
				t.Errorf("seed %d: the endpoint stays in %v", seed, a.c.state)
			}
		}
	}
	switch {
	case recovers && (broken != 0 || good != 160*30):
		t.Errorf("%d good messages, %d connections broken where losses are made good", good, broken)
	case !recovers && (good == 0 || (broken == 0) != (level == iu.Unreliable)):
		t.Errorf("%d good messages, %d connections broken: the fabric was not lossy", good, broken)
	}
	t.Logf("%d messages delivered, %d of 160 connections broken", good, broken)
}
