package iwarp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"viaduct/internal/wire/ddp"
)

// TestTraffic makes both ends of a stream post random requests at the same time: every kind, random
// sizes, fences, inline data, batches. Sends must arrive whole and in order, Reads must return the
// written bytes, and requests must complete in the order of posting. Repeat a failed run with its
// seed.
func TestTraffic(t *testing.T) {
	for i, v := range []struct {
		name   string
		ci, cr Config
		noCRC  bool
	}{
		{name: "default"}, {name: "no CRC", noCRC: true}, {name: "small FPDUs", ci: Config{Interop: Interop{FPDUSize: 200}}, cr: Config{Interop: Interop{FPDUSize: 1442}}},
		{name: "markers", ci: Config{Interop: Interop{Markers: true}}, cr: Config{Interop: Interop{Markers: true}}, noCRC: true},
		{name: "one read at a time", ci: Config{ORD: 1, IRD: 1}, cr: Config{ORD: 1, IRD: 1}},
		{name: "portable", ci: Config{portable: true}},
	} {
		t.Run(v.name, func(t *testing.T) {
			ops := 400
			if raceEnabled || v.ci.portable {
				ops = 100
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			for _, c := range []*Config{&v.ci, &v.cr} {
				c.Device = NewDevice(DeviceConfig{NoCRC: v.noCRC})
				c.Atomic, c.Immediate = true, true
				c.SendDepth, c.RecvDepth = 64, ops
			}
			a, b := connect(t, &v.ci, &v.cr)
			ea, eb := newEnd(t, a, seed, ops), newEnd(t, b, seed+uint64(i)+1, ops)
			ea.peer, eb.peer = eb, ea
			var wg sync.WaitGroup
			for _, e := range []*end{ea, eb} {
				wg.Go(func() { e.post(ops) })
				wg.Go(e.complete)
				wg.Go(e.receive)
			}
			wg.Wait()
			if got := ea.word(); got != eb.added {
				t.Errorf("sum %d, want %d", got, eb.added)
			}
		})
	}
}

// An end is one side of TestTraffic.
type end struct {
	t      *testing.T
	q      *QueuePair
	peer   *end
	rnd    *rand.Rand
	mr     *MemoryRegion // target of the peer's Writes: a word for atomics, then data
	inbox  [][]byte
	posted chan job
	sends  chan int // total number of messages for the peer, when known
	added  uint64
}

// A job is a posted request, and the condition that must hold when it is done.
type job struct {
	id    uint64
	check func(c Completion) error
}

const maxTraffic = 150000

func newEnd(t *testing.T, q *QueuePair, seed uint64, ops int) *end {
	e := &end{t: t, q: q, rnd: rand.New(rand.NewPCG(seed, 7)), posted: make(chan job, ops+1), sends: make(chan int, 1)}
	e.mr, _ = q.Register(make([]byte, 8+maxTraffic), RemoteRead|RemoteWrite|RemoteAtomic)
	for i := range ops {
		b := make([]byte, 4096)
		if i%7 == 0 { // some receives have room for a long message
			b = make([]byte, maxTraffic)
		}
		e.inbox = append(e.inbox, b)
		if err := q.PostRecv(RecvWR{ID: uint64(i), SG: []SGE{Buf(b[:len(b)/3]), Buf(b[len(b)/3:])}}); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func (e *end) size(limit int) int {
	switch e.rnd.IntN(6) {
	case 0, 1:
		return e.rnd.IntN(limit + 1)
	case 2: // near the size of a full segment
		full := e.q.mulpdu()
		return min(max(full*e.rnd.IntN(limit/full+2)-e.rnd.IntN(2*ddp.UntaggedLen), 0), limit)
	}
	return e.rnd.IntN(min(limit, 200) + 1)
}

// text returns the payload of message n of a sender: size bytes, at least 8, that begin with n.
func text(n, size int) []byte {
	b := pattern(max(size, 8), byte(n))
	binary.BigEndian.PutUint64(b, uint64(n))
	return b
}

func (e *end) post(ops int) {
	defer close(e.posted)
	sent := 0
	at := func(off int) RemoteAddr { return RemoteAddr{e.peer.mr.STag(), e.peer.mr.TO() + uint64(off)} }
	for i := range ops {
		wr := SendWR{ID: uint64(i), Fence: e.rnd.IntN(10) == 0, More: e.rnd.IntN(4) == 0}
		j := job{id: wr.ID}
		switch e.rnd.IntN(6) {
		case 0, 1:
			limit := 4096
			if sent%7 == 0 {
				limit = maxTraffic
			}
			b := text(sent, e.size(limit))
			wr.SG = []SGE{Buf(b[:len(b)/2]), Buf(b[len(b)/2:])}
			wr.Inline = len(b) <= MaxInline && e.rnd.IntN(2) == 0
			if e.rnd.IntN(4) == 0 {
				wr.Op = OpSendSE
			}
			sent++
		case 2:
			wr.Op = OpImmediate
			binary.BigEndian.PutUint64(wr.Immediate[:], uint64(sent))
			sent++
		case 3:
			wr.Op, wr.Remote = OpFetchAdd, at(0)
			wr.Atomic.Data = uint64(i)
			e.added += uint64(i)
		default: // a Write, and a Read that must return its bytes
			n := e.size(maxTraffic)
			off := 8 + e.rnd.IntN(maxTraffic-n+1)
			data, back := pattern(n, byte(i)), make([]byte, n)
			w := SendWR{Op: OpWrite, Unsignaled: true, SG: []SGE{Buf(data)}, Remote: at(off), Fence: true, More: true}
			e.must(w)
			wr.Op, wr.SG, wr.Remote = OpRead, []SGE{Buf(back)}, at(off)
			j.check = func(Completion) error {
				if !bytes.Equal(back, data) {
					return fmt.Errorf("read %d bytes at %d: not what was written", n, off)
				}
				return nil
			}
		}
		e.must(wr)
		e.posted <- j
	}
	e.q.Flush()
	e.sends <- sent
}

// must posts a request. If the queue is full, it waits for room.
func (e *end) must(wr SendWR) {
	for {
		err := e.q.Post(wr)
		if err == nil {
			return
		}
		if err != ErrQueueFull {
			e.t.Error(err, e.q.Err())
			return
		}
		e.q.Flush()
		e.peer.q.link.fc.Poll()
		runtime.Gosched()
	}
}

func (e *end) complete() {
	for j := range e.posted {
		c, err := e.q.SendCQ().Wait(ctxt(e.t))
		if err != nil || c.Status != StatusOK || c.ID != j.id {
			e.t.Errorf("%+v, %v (%v), want request %d", c, err, e.q.Err(), j.id)
			return
		}
		if j.check != nil {
			if err := j.check(c); err != nil {
				e.t.Error(err)
			}
		}
	}
}

func (e *end) receive() {
	want := -1
	for n := 0; want < 0 || n < want; {
		if want < 0 {
			select {
			case want = <-e.peer.sends:
				continue
			default:
			}
		}
		c, ok := e.q.RecvCQ().Poll()
		if !ok {
			if e.q.Err() != nil {
				e.t.Error(e.q.Err())
				return
			}
			if want < 0 {
				want = <-e.peer.sends
				continue
			}
			var err error
			if c, err = e.q.RecvCQ().Wait(ctxt(e.t)); err != nil {
				e.t.Errorf("message %d of %d: %v", n, want, err)
				return
			}
		}
		b := e.inbox[c.ID][:c.Len]
		if c.HasImm {
			b = c.Imm[:]
		}
		if c.Status != StatusOK || c.ID != uint64(n) || binary.BigEndian.Uint64(b) != uint64(n) ||
			!c.HasImm && !bytes.Equal(b, text(n, len(b))) {
			e.t.Errorf("message %d: %+v, %.16x (%v)", n, c, b, e.q.Err())
			return
		}
		n++
	}
}

// word returns the sum of the peer's atomic additions to the word of this end.
func (e *end) word() uint64 {
	e.q.link.fc.Quiesce()
	return binary.NativeEndian.Uint64(e.mr.Bytes())
}
