package roce

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/badwire"
	"viaduct/internal/testkit"
)

// overBadWire returns two queue pairs that are connected through w, a wire with the faults f.
func overBadWire(t *testing.T, cfg Config, f badwire.Faults) (a, b *QueuePair, w *badwire.Wire) {
	t.Helper()
	da, db := devices(t)
	for w == nil {
		at := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
		if at != da.Addr() && at != db.Addr() {
			w, _ = badwire.New(at, da.Addr(), db.Addr(), f)
		}
	}
	t.Cleanup(func() { w.Close() })
	var err error
	if a, err = da.NewQueuePair(cfg); err != nil {
		t.Fatal(err)
	}
	if b, err = db.NewQueuePair(cfg); err != nil {
		t.Fatal(err)
	}
	through := func(e Endpoint) Endpoint { e.Addr = w.Addr(); return e }
	if err := errors.Join(a.Connect(through(b.Local())), b.Connect(through(a.Local()))); err != nil {
		t.Fatal(err)
	}
	return a, b, w
}

// A conversation sends requests of all kinds from one queue pair to another, and checks the
// results.
type conversation struct {
	t        *testing.T
	from, to *QueuePair
	size     int // bytes of a message

	far       *MemoryRegion // size bytes that are only read, slots places to write, and a word
	sink      []byte        // destination of Reads, one piece for each request in progress
	sum       uint64        // expected value of the word
	received  chan error    // result of the receiving goroutine
	completed int
}

const (
	underWay = 32 // requests in progress at a time
	slots    = 64 // places that Writes use in turn
)

func newConversation(t *testing.T, from, to *QueuePair, size int) *conversation {
	t.Helper()
	c := &conversation{t: t, from: from, to: to, size: size, sink: make([]byte, underWay*size),
		received: make(chan error, 1)}
	mem := make([]byte, c.wordAt()+8)
	fill(mem[:size], 4711)
	var err error
	if c.far, err = to.PD().Register(mem, RemoteRead|RemoteWrite|RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	return c
}

// fill fills b with bytes that depend on i, so that messages can be told apart.
func fill(b []byte, i int) {
	for k := range b {
		b[k] = byte(k*7 + k>>8 + i*31 + i>>3)
	}
}

func (c *conversation) place(off int) RemoteAddr {
	return RemoteAddr{c.far.Addr() + uint64(off), c.far.Key()}
}

func (c *conversation) wordAt() int { return (c.size + slots*c.size + 7) &^ 7 }

// request returns request i: in turn a Send, a Write, a Read and a FetchAdd.
func (c *conversation) request(i int) SendWR {
	wr := SendWR{ID: uint64(i)}
	sink := c.sink[i%underWay*c.size:][:c.size]
	switch i % 4 {
	case 0, 1:
		data := make([]byte, c.size)
		fill(data, i)
		wr.SG = []SGE{Buf(data)}
		if i%4 == 1 {
			wr.Op, wr.Remote = OpWrite, c.place(c.size+i/4%slots*c.size)
		}
	case 2:
		clear(sink)
		wr.Op, wr.SG, wr.Remote = OpRead, []SGE{Buf(sink)}, c.place(0)
	case 3:
		wr.Op, wr.Remote, wr.SwapAdd = OpFetchAdd, c.place(c.wordAt()), uint64(i)
	}
	return wr
}

// hold runs a conversation of n requests, and checks the memory at the end. It calls at before each
// request.
func (c *conversation) hold(n int, at func(i int)) {
	c.t.Helper()
	go func() { c.received <- c.receive((n + 3) / 4) }()
	for i := range n {
		if i-c.completed == underWay {
			c.complete()
		}
		at(i)
		if err := c.from.Post(c.request(i)); err != nil {
			c.t.Fatal(err)
		}
	}
	for c.completed < n {
		c.complete()
	}
	if err := <-c.received; err != nil {
		c.t.Fatal(err)
	}
	c.to.Stats() // takes the lock under which the memory was written, for the race detector
	writes := (n + 2) / 4
	for s := range min(slots, writes) {
		last := (writes-1-s)/slots*slots + s // the number of the last Write to this place
		want := make([]byte, c.size)
		fill(want, 4*last+1)
		if !bytes.Equal(c.far.Bytes()[c.size+s*c.size:][:c.size], want) {
			c.t.Fatalf("wrong data at place %d", s)
		}
	}
	if sum := binary.NativeEndian.Uint64(c.far.Bytes()[c.wordAt():]); sum != c.sum {
		c.t.Fatalf("the word is %d, not %d", sum, c.sum)
	}
}

// complete waits for the completion of the oldest request, and checks its result.
func (c *conversation) complete() {
	c.t.Helper()
	e := good(c.t, c.from.SendCQ())
	i := c.completed
	c.completed++
	if e.ID != uint64(i) {
		c.t.Fatalf("request %d is complete before request %d", e.ID, i)
	}
	switch e.Op {
	case OpRead:
		if !bytes.Equal(c.sink[i%underWay*c.size:][:c.size], c.far.Bytes()[:c.size]) {
			c.t.Fatalf("request %d has read wrong data", i)
		}
	case OpFetchAdd:
		if e.Value != c.sum {
			c.t.Fatalf("the word was %d at request %d, not %d", e.Value, i, c.sum)
		}
		c.sum += uint64(i)
	}
}

// receive receives n Sends and checks them. It returns an error at the first wrong one.
func (c *conversation) receive(n int) error {
	next := func() (Completion, error) {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		return c.to.RecvCQ().Wait(ctx)
	}
	bufs := make([][]byte, underWay)
	for i := range bufs {
		bufs[i] = make([]byte, c.size)
		if err := c.to.PostRecv(RecvWR{ID: uint64(i), SG: []SGE{Buf(bufs[i])}}); err != nil {
			return err
		}
	}
	want := make([]byte, c.size)
	for i := range n {
		e, err := next()
		if err == nil {
			err = e.Err()
		}
		if err != nil {
			return fmt.Errorf("receive of Send %d of %d: %w", i, n, err)
		}
		fill(want, 4*i)
		got := bufs[i%underWay]
		if e.ID != uint64(i%underWay) || e.Len != c.size || !bytes.Equal(got, want) {
			return errors.New("wrong data was received")
		}
		if err := c.to.PostRecv(RecvWR{ID: e.ID, SG: []SGE{Buf(got)}}); err != nil {
			return err
		}
	}
	return nil
}

// patient is a timeout for ends that answer, but may have to wait for a processor.
const patient = 2 * time.Second

// TestFaults runs conversations over wires that lose, duplicate and reorder packets, and checks the
// transferred data. If one packet in a thousand is lost, none of 10,000 messages waits for a
// timeout. [ROCE-REQ-9] [ROCE-REQ-11] [ROCE-RESP-3] [ROCE-RESP-4] [ROCE-RESP-5]
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		faults   badwire.Faults
		n        int
		timeouts bool // timeouts are allowed
	}{
		{"loss 0.1 %", badwire.Faults{Seed: 1, Loss: 0.001}, 10000, false},
		{"loss 1 %", badwire.Faults{Seed: 2, Loss: 0.01}, 2000, true},
		{"loss 5 %", badwire.Faults{Seed: 3, Loss: 0.05}, 1000, true},
		{"duplicates", badwire.Faults{Seed: 4, Duplicate: 0.05}, 2000, false},
		{"reordering", badwire.Faults{Seed: 5, Late: 0.05}, 1000, false},
		{"all", badwire.Faults{Seed: 6, Loss: 0.02, Duplicate: 0.02, Late: 0.02}, 1000, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			timeout := patient
			if !c.timeouts {
				timeout = testkit.Patience // on a busy machine, an acknowledgement can be late
			}
			a, b, w := overBadWire(t, Config{MTU: 1024, Timeout: timeout}, c.faults)
			newConversation(t, a, b, 2500).hold(c.n, func(int) {})
			passed, spoilt := w.Packets()
			t.Logf("%d packets passed, %d spoilt; %+v", passed, spoilt, a.Stats())
			if spoilt == 0 || a.Stats().Timeouts > 0 && !c.timeouts {
				t.Errorf("%d packets were spoilt, %d timeouts", spoilt, a.Stats().Timeouts)
			}
		})
	}
}

// A wire that passes nothing for a while delays a conversation without ending it.
func TestBlackout(t *testing.T) {
	t.Parallel()
	outage := 500 * time.Millisecond
	if testkit.LongRuns() {
		outage = 5 * time.Second
	}
	a, b, w := overBadWire(t, Config{MTU: 1024, Timeout: outage / 4, Retries: 100}, badwire.Faults{})
	const n = 2000
	newConversation(t, a, b, 2500).hold(n, func(i int) {
		if i == n/2 {
			w.Block(true)
			time.AfterFunc(outage, func() {
				for end := time.Now().Add(testkit.Patience); a.Stats().Timeouts == 0 && time.Now().Before(end); {
					time.Sleep(time.Millisecond)
				}
				w.Block(false)
			})
		}
	})
	if s := a.Stats(); s.Timeouts == 0 {
		t.Errorf("nobody has noticed: %+v", s)
	}
}

// If the wire passes nothing more, requests fail after one timeout for the first attempt and one
// for each retry. [ROCE-REQ-9] [ROCE-REQ-13]
func TestBlackoutForever(t *testing.T) {
	t.Parallel()
	const timeout, retries = time.Second, 3
	a, b, w := overBadWire(t, Config{MTU: 1024, Timeout: timeout, Retries: retries}, badwire.Faults{})
	newConversation(t, a, b, 2500).hold(20, func(int) {})
	w.Block(true)
	before, begin := a.Stats().Timeouts, time.Now()
	if err := a.Post(SendWR{ID: 1, SG: []SGE{Buf(make([]byte, 5000))}}, SendWR{ID: 2}); err != nil {
		t.Fatal(err)
	}
	const computed = (retries + 1) * timeout
	if c := wait(t, a.SendCQ()); c.ID != 1 || c.Status != StatusRetryExceeded {
		t.Errorf("%+v", c)
	}
	// A busy machine may be late, but the failure must not come early.
	if took := time.Since(begin); took < computed {
		t.Errorf("given up after %v, computed %v", took, computed)
	}
	if c := wait(t, a.SendCQ()); c.ID != 2 || c.Status != StatusFlushed {
		t.Errorf("%+v", c)
	}
	if n := a.Stats().Timeouts - before; n != retries+1 {
		t.Errorf("%d timeouts, not %d", n, retries+1)
	}
}

// Over a wire that loses packets, an unreliable connection delivers only sent messages, each whole
// and in order.
func TestFaultsUnreliable(t *testing.T) {
	t.Parallel()
	a, b, w := overBadWire(t, Config{Transport: UC, MTU: 1024}, badwire.Faults{Seed: 7, Loss: 0.05})
	const n, size, recvs = 300, 2500, 64
	bufs := make([][]byte, recvs)
	for i := range bufs {
		bufs[i] = make([]byte, size)
		if err := b.PostRecv(RecvWR{ID: uint64(i), SG: []SGE{Buf(bufs[i])}}); err != nil {
			t.Fatal(err)
		}
	}
	got, last := 0, -1
	look := func() {
		for e, ok := b.RecvCQ().Poll(); ok; e, ok = b.RecvCQ().Poll() {
			i := int(binary.BigEndian.Uint32(e.Imm[:]))
			want := make([]byte, size)
			fill(want, i)
			if e.Status != StatusOK || e.Len != size || i <= last || !bytes.Equal(bufs[e.ID], want) {
				t.Fatalf("message %d after %d: %+v", i, last, e)
			}
			got, last = got+1, i
			if err := b.PostRecv(RecvWR{ID: e.ID, SG: []SGE{Buf(bufs[e.ID])}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range n {
		data := make([]byte, size)
		fill(data, i)
		wr := SendWR{SG: []SGE{Buf(data)}, HasImm: true}
		binary.BigEndian.PutUint32(wr.Imm[:], uint32(i))
		if err := a.Post(wr); err != nil {
			t.Fatal(err)
		}
		good(t, a.SendCQ())
		look()
		if i%16 == 0 { // not faster than the wire and the receiver, whose receives would be used up
			testkit.Eventually(t, "the wire and the receiver", func() bool {
				passed, lost := w.Packets()
				return passed+lost == a.Stats().SentPackets && passed == b.Stats().ReceivedPackets
			})
		}
	}
	testkit.Eventually(t, "messages", func() bool { look(); return got >= n/4 })
	if got == n {
		t.Error("nothing was lost")
	}
}
