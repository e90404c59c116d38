package rocecore

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"viaduct/internal/wire/ib"
)

// The simulation connects two connections by two wires that lose, duplicate, delay and reorder
// packets. Each end runs a random program. The test follows every byte from request to memory, with
// code not shared with the package. The seed determines a run completely.

var (
	simSeed = flag.Uint64("sim.seed", 0, "run the one simulation with this seed, and print its packets")
	simRuns = flag.Int("sim.runs", 0, "simulations; 0: 30, or 500 if VIADUCT_LONG is 1")
)

type simEvent struct {
	at  Time
	seq int
	f   func()
}

type simEvents []simEvent

func (q simEvents) Len() int { return len(q) }
func (q simEvents) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q simEvents) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simEvents) Push(v any)   { *q = append(*q, v.(simEvent)) }
func (q *simEvents) Pop() any {
	old := *q
	v := old[len(old)-1]
	*q = old[:len(old)-1]
	return v
}

// A sim is one run of the simulation.
type sim struct {
	t      *testing.T
	r      *rand.Rand
	now    Time
	events simEvents
	seq    int
	ends   [2]*simEnd
	loss   float64
	dup    float64
	jitter time.Duration
	mtu    int
	lost   int
	print  bool
}

// The memory of an end has three areas. Reads read an area that never changes, because a repeated
// Read may see later Writes. Writes write an area compared at the end. The last area is a word for
// atomic operations.
const (
	readArea  = 64 << 10
	writeArea = 64 << 10
	wordAt    = readArea + writeArea
)

type simEnd struct {
	s     *sim
	name  string
	host  *fakeHost
	c     *Connection
	peer  *simEnd
	tick  Time // time of the next scheduled Tick, 0 if none
	model []byte

	toPost   int
	posted   int
	expected []simExpect // indexed by request
	sends    []simSend   // messages that the peer has to receive
	word     uint64      // the peer's word after all posted atomic operations
}

type simExpect struct {
	read  slice  // destination
	want  []byte // expected contents of read
	value uint64
	isAt  bool
}

type simSend struct {
	data  []byte
	imm   ib.ImmDt
	has   bool
	write bool
}

func (s *sim) after(d time.Duration, f func()) {
	s.seq++
	heap.Push(&s.events, simEvent{s.now + d, s.seq, f})
}

func newSim(t *testing.T, seed uint64, transport ib.Transport) *sim {
	r := rand.New(rand.NewPCG(seed, 17))
	s := &sim{t: t, r: r, print: *simSeed != 0,
		loss:   []float64{0, 0.001, 0.01, 0.05, 0.2}[r.IntN(5)],
		dup:    []float64{0, 0.01, 0.1}[r.IntN(3)],
		jitter: []time.Duration{0, 5 * time.Microsecond, 500 * time.Microsecond}[r.IntN(3)],
		mtu:    256 << r.IntN(3),
	}
	psn := [2]ib.PSN{ib.PSN(r.Uint32N(1 << 24)), ib.PSN(0xfffff0 + r.Uint32N(16))}
	served := 1 + r.IntN(8)
	for i := range 2 {
		mem := make([]byte, wordAt+8)
		for k := range readArea {
			mem[k] = byte(k*7 + k>>8 + i)
		}
		h := &fakeHost{mem: mem, rights: RemoteRead | RemoteWrite | RemoteAtomic}
		e := &simEnd{s: s, name: string(rune('A' + i)), host: h, toPost: 20 + r.IntN(60)}
		e.c = New(h, Config{Transport: transport, MTU: s.mtu, PeerQPN: 7, PSN: psn[1-i],
			Access: h.rights, MaxServed: served, RNRTimer: uint8(1 + r.IntN(10))})
		e.c.StartSending(SendConfig{PSN: psn[i], MaxReads: 1 + r.IntN(served),
			Timeout: 4 * time.Millisecond << r.IntN(5), Retries: 40, RNRRetry: RNRForever,
			Window: 1 + r.IntN(MaxWindow)})
		s.ends[i] = e
	}
	s.ends[0].peer, s.ends[1].peer = s.ends[1], s.ends[0]
	for _, e := range s.ends {
		e.model = bytes.Clone(e.peer.host.mem)
		s.after(0, e.program)
		s.after(0, e.supply)
	}
	return s
}

// program posts a few requests and schedules itself again.
func (e *simEnd) program() {
	s := e.s
	for range 1 + s.r.IntN(4) {
		if e.posted == e.toPost {
			break
		}
		e.post()
	}
	if e.posted < e.toPost {
		s.after(time.Duration(s.r.IntN(400))*time.Microsecond, e.program)
	}
	e.run()
}

func (e *simEnd) random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(e.s.r.Uint32())
	}
	return b
}

func (e *simEnd) post() {
	s := e.s
	n := s.r.IntN(4) * s.r.IntN(3*s.mtu)
	if s.r.IntN(3) == 0 {
		n = s.mtu * s.r.IntN(5)
	}
	r := &Request{ID: uint64(e.posted), Fence: s.r.IntN(8) == 0, Solicited: s.r.IntN(2) == 0}
	var x simExpect
	kinds := 4
	if !e.c.reliable() {
		kinds = 2
	}
	switch s.r.IntN(kinds) {
	case 0:
		data := e.random(n)
		r.Op, r.Buf = Send, slice(data)
		r.HasImm = s.r.IntN(2) == 0
		binary.BigEndian.PutUint32(r.Imm[:], uint32(e.posted))
		e.sends = append(e.sends, simSend{data: data, imm: r.Imm, has: r.HasImm})
	case 1:
		n = min(n, writeArea)
		data := e.random(n)
		at := readArea + s.r.IntN(writeArea-n+1)
		r.Op, r.Buf, r.Remote = Write, slice(data), Place{base + uint64(at), key}
		r.HasImm = s.r.IntN(3) == 0
		binary.BigEndian.PutUint32(r.Imm[:], uint32(e.posted))
		if r.HasImm {
			e.sends = append(e.sends, simSend{data: data, imm: r.Imm, has: true, write: true})
		}
		copy(e.model[at:], data)
	case 2:
		n = min(n, readArea)
		at := s.r.IntN(readArea - n + 1)
		x.read, x.want = make(slice, n), e.model[at:at+n]
		r.Op, r.Buf, r.Remote = Read, x.read, Place{base + uint64(at), key}
	case 3:
		r.Op, r.Remote = FetchAdd, Place{base + wordAt, key}
		r.SwapAdd = uint64(s.r.IntN(1000))
		x.isAt, x.value = true, e.word
		e.word += r.SwapAdd
		x.read = make(slice, 8)
		x.want = binary.NativeEndian.AppendUint64(nil, x.value)
		r.Buf = x.read
	}
	e.expected = append(e.expected, x)
	e.posted++
	e.c.Post(r)
}

// supply posts receives at random times, so that some messages find none.
func (e *simEnd) supply() {
	s := e.s
	for range s.r.IntN(4) {
		e.host.receives = append(e.host.receives, Receive{ID: uint64(s.seq), Buf: make(slice, 32<<10)})
	}
	s.after(time.Duration(s.r.IntN(500))*time.Microsecond, e.supply)
}

// run sends the packets that may be sent, and schedules the next Tick.
func (e *simEnd) run() {
	s := e.s
	var out Output
	more := e.c.Transmit(s.now, &out, 1+s.r.IntN(64))
	for i := range out.Len() {
		b, _ := out.Packet(i)
		e.carry(bytes.Clone(b[:len(b)-ib.ICRCLen]))
	}
	if more {
		s.after(time.Microsecond, e.run)
	}
	if at, ok := e.c.Deadline(); ok && (e.tick == 0 || at < e.tick) {
		at = max(at, s.now)
		e.tick = at
		s.after(at-s.now, func() {
			if e.tick == at {
				e.tick = 0
			}
			e.c.Tick(s.now)
			e.run()
		})
	}
}

// carry delivers a packet to the other end, unless the wire loses it.
func (e *simEnd) carry(b []byte) {
	s := e.s
	copies := 1
	if s.r.Float64() < s.dup {
		copies = 2
	}
	for range copies {
		if s.r.Float64() < s.loss {
			s.lost++
			s.log(e, "lost", b)
			continue
		}
		d := 10*time.Microsecond + time.Duration(s.r.Int64N(int64(s.jitter)+1))
		s.after(d, func() {
			s.log(e, "    ", b)
			p, err := ib.Parse(b)
			if err != nil {
				s.t.Fatal(err)
			}
			e.peer.c.Receive(s.now, &p)
			if s.r.IntN(4) != 0 { // packets arrive in bursts
				e.peer.run()
			} else {
				s.after(time.Microsecond, e.peer.run)
			}
		})
	}
}

func (s *sim) log(e *simEnd, what string, b []byte) {
	if s.print {
		p, _ := ib.Parse(b)
		fmt.Printf("%12v %s %s %v\n", s.now, e.name, what, p.LogValue())
	}
}

func (s *sim) over() bool {
	for _, e := range s.ends {
		if e.posted < e.toPost || len(e.host.done) < e.toPost {
			return false
		}
	}
	return true
}

// steps runs the simulation until all requests are complete. It returns an error after 10 minutes
// of simulated time.
func (s *sim) steps() error {
	const limit = 10 * time.Minute
	for n := 0; !s.over(); n++ {
		if len(s.events) == 0 || s.now > limit || n > 3_000_000 {
			return fmt.Errorf("stuck at %v after %d steps: %d of %d and %d of %d complete", s.now, n,
				len(s.ends[0].host.done), s.ends[0].toPost, len(s.ends[1].host.done), s.ends[1].toPost)
		}
		ev := heap.Pop(&s.events).(simEvent)
		s.now = ev.at
		ev.f()
		for _, e := range s.ends {
			if len(e.host.failed) > 0 {
				return fmt.Errorf("%s failed at %v: %v", e.name, s.now, e.host.failed)
			}
			if n := e.c.resp.responses.len(); n > 2*len(e.c.resp.served)+2 {
				return fmt.Errorf("%s has %d responses to send", e.name, n)
			}
			if e.c.req.oldest.Less(e.c.req.next) && e.c.reliable() && e.c.req.items.len() == 0 {
				return fmt.Errorf("%s has packets outstanding and no request", e.name)
			}
		}
	}
	return nil
}

// check compares the completions, the received messages and the memory with the expected ones.
func (s *sim) check() error {
	for _, e := range s.ends {
		for i, d := range e.host.done { // [ROCE-REQ-15]
			if d.id != uint64(i) || d.c.Status != OK {
				return fmt.Errorf("%s: completion %d is of request %d: %v", e.name, i, d.id, d.c.Status)
			}
			x := e.expected[i]
			if !bytes.Equal(x.read, x.want) {
				return fmt.Errorf("%s: request %d has read wrong data", e.name, i)
			}
			if x.isAt && d.c.Value != x.value {
				return fmt.Errorf("%s: the word was %d at request %d, not %d", e.name, d.c.Value, i, x.value)
			}
		}
		if len(e.peer.host.got) != len(e.sends) {
			return fmt.Errorf("%s: %d messages were received, not %d", e.name, len(e.peer.host.got), len(e.sends))
		}
		for i, m := range e.sends {
			g := e.peer.host.got[i]
			if g.a.Status != OK || g.a.HasImm != m.has || g.a.Write != m.write ||
				m.has && g.a.Imm != m.imm || g.a.Len != len(m.data) || !m.write && !bytes.Equal(g.data, m.data) {
				return fmt.Errorf("%s: message %d: %+v, not %d bytes", e.name, i, g.a, len(m.data))
			}
		}
		if !bytes.Equal(e.model[readArea:wordAt], e.peer.host.mem[readArea:wordAt]) {
			return fmt.Errorf("%s: what was written is wrong", e.name)
		}
		if w := binary.NativeEndian.Uint64(e.peer.host.mem[wordAt:]); w != e.word {
			return fmt.Errorf("%s: the word is %d, not %d", e.name, w, e.word)
		}
	}
	return nil
}

// TestSimulation connects pairs of reliable connections by bad wires. [ROCE-RESP-1] [ROCE-RESP-3]
// [ROCE-RESP-4] [ROCE-RESP-5] [ROCE-RESP-15] [ROCE-COMP-2] [ROCE-COMP-3]
func TestSimulation(t *testing.T) {
	var total Counters
	lost, runs := 0, *simRuns
	switch {
	case runs != 0:
	case os.Getenv("VIADUCT_LONG") == "1":
		runs = 500
	default:
		runs = 30
	}
	for seed := uint64(1); seed <= uint64(runs); seed++ {
		if *simSeed != 0 {
			seed = *simSeed
		}
		s := newSim(t, seed, ib.RC)
		err := s.steps()
		if err == nil {
			err = s.check()
		}
		if err != nil {
			t.Fatalf("seed %d: loss %v, duplicates %v, jitter %v, MTU %d: %v", seed, s.loss,
				s.dup, s.jitter, s.mtu, err)
		}
		for _, e := range s.ends {
			n := e.c.Counters()
			total.SentPackets += n.SentPackets
			total.Resent += n.Resent
			total.Probes += n.Probes
			total.Timeouts += n.Timeouts
			total.SentNAKs += n.SentNAKs
			total.SentRNR += n.SentRNR
			total.Duplicates += n.Duplicates
		}
		lost += s.lost
		if *simSeed != 0 {
			break
		}
	}
	t.Logf("%d packets were lost; %+v", lost, total)
	if *simSeed == 0 && (total.Timeouts == 0 || total.Probes == 0 || total.SentNAKs == 0 || total.SentRNR == 0 || total.Duplicates == 0) {
		t.Errorf("the simulations have left something out: %+v", total)
	}
}

// TestSimulationUnreliable connects pairs of unreliable connections by wires that lose packets.
// Every delivered message must have been sent, and must be whole and in order. [ROCE-UC-1]
// [ROCE-UC-2] [ROCE-UC-3] [ROCE-UC-4]
func TestSimulationUnreliable(t *testing.T) {
	delivered, sent := 0, 0
	for seed := uint64(1); seed <= 20; seed++ {
		s := newSim(t, seed, ib.UC)
		s.dup, s.jitter = 0, 0
		if err := s.steps(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for range 200 { // packets on the wires; supply never ends
			if len(s.events) == 0 || s.now > time.Hour {
				break
			}
			ev := heap.Pop(&s.events).(simEvent)
			s.now = ev.at
			ev.f()
		}
		for _, e := range s.ends {
			next := 0
			for _, g := range e.peer.host.got {
				if g.a.Status != OK {
					t.Fatalf("seed %d: %+v", seed, g.a)
				}
				found := false
				for ; next < len(e.sends) && !found; next++ {
					m := e.sends[next]
					found = g.a.HasImm == m.has && g.a.Write == m.write && (!m.has || g.a.Imm == m.imm) &&
						g.a.Len == len(m.data) && (m.write || bytes.Equal(g.data, m.data))
				}
				if !found {
					t.Fatalf("seed %d: a message was received that was not sent, or not in order: %+v", seed, g.a)
				}
			}
			delivered += len(e.peer.host.got)
			sent += len(e.sends)
			if s.loss == 0 && e.peer.c.count.Refused != 0 {
				t.Errorf("seed %d: %+v", seed, e.peer.c.count)
			}
		}
	}
	if delivered < sent/3 {
		t.Errorf("%d of %d messages were delivered", delivered, sent)
	}
	t.Logf("%d of %d messages were delivered", delivered, sent)
}
