package frameio

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaduct/internal/regmem"
	"viaduct/internal/testkit"
)

// TestEveryByteArrives sends frames both ways at once, from several goroutines.
func TestEveryByteArrives(t *testing.T) {
	const n = 600
	fs := frames(n)
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		doneA, doneB := a.expect(t, fs), b.expect(t, fs)
		a.c.Start(nil)
		b.c.Start(nil)
		var wg sync.WaitGroup
		for _, p := range []*lengthFramed{a, b} {
			wg.Go(func() {
				for i, f := range fs {
					p.post(f)
					if i%7 == 0 {
						p.c.Kick()
					}
				}
				p.c.Kick()
			})
			wg.Go(func() {
				for range 200 {
					p.c.Kick()
				}
			})
		}
		testkit.Await(t, "all frames one way", doneB)
		testkit.Await(t, "all frames the other way", doneA)
		wg.Wait()
		a.c.Shutdown()
		if err := testkit.Await(t, "the end", b.failed); err != io.EOF {
			t.Errorf("after Shutdown: %v", err)
		}
		b.c.Shutdown() // the other direction still works
		if err := testkit.Await(t, "the end", a.failed); err != io.EOF {
			t.Errorf("after Shutdown: %v", err)
		}
		testkit.Eventually(t, "everything is reported as sent",
			func() bool { return a.sentFrames() == n && b.sentFrames() == n })
	})
}

// TestSocketFull: a lone frame is in the kernel when Kick returns. Kick does not wait when the
// socket is full: a goroutine takes the role, and no frame is lost.
func TestSocketFull(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		a.post([]byte("first"))
		a.c.Kick()
		if k.name == "tcp" && a.sentFrames() != 1 {
			t.Error("Kick returned before the frame was sent")
		}
		fs := [][]byte{[]byte("first")}
		const piece, total = 64 << 10, 24 << 20
		begin := time.Now()
		for i := range total / piece {
			f := bytes.Repeat([]byte{byte(i + 1)}, piece)
			fs = append(fs, f)
			a.post(f)
			a.c.Kick()
		}
		if took := time.Since(begin); took > testkit.Patience/2 {
			t.Errorf("posting took %v", took)
		}
		if a.sentFrames() == len(fs) {
			t.Fatal("the socket is not full")
		}
		n := len(fs)
		done := b.expect(t, fs)
		b.c.Start(nil)
		testkit.Eventually(t, "everything is reported as sent", func() bool { return a.sentFrames() == n })
		testkit.Await(t, "all frames but the last, so that the socket has room", done)
		b.c.WithReceiver(func() { done = b.expect(t, [][]byte{[]byte("last")}) })
		// The role is free again, so that the next frame is sent at once.
		testkit.Eventually(t, "the role is free", func() bool { return a.c.tx.state.Load() == idle })
		a.post([]byte("last"))
		a.c.Kick()
		if k.name == "tcp" && a.sentFrames() != n+1 {
			t.Error("Kick returned before the frame was sent")
		}
		testkit.Await(t, "the last frame", done)
	})
}

// fullSocket posts pieces of r, pinned, until the sender waits for the peer. Like an engine that
// pins memory for each frame, fullSocket releases the pins of frames outside the batch. It returns
// the number of frames that are in the batch or were sent.
func fullSocket(t *testing.T, a *lengthFramed, r *regmem.Region, piece int) int {
	t.Helper()
	for off := 0; off+piece <= r.Len(); off += piece {
		ref, out := r.Access(r.Base()+uint64(off), uint64(piece), nil, nil, regmem.LocalRead)
		if out != regmem.OK {
			t.Fatal(out)
		}
		a.postRef(ref)
	}
	a.c.Start(nil)
	a.c.Kick()
	testkit.Eventually(t, "the socket is full", func() bool {
		a.c.tx.mu.Lock()
		defer a.c.tx.mu.Unlock()
		return a.c.tx.waiting ||
			a.c.sock.Load() == nil && a.c.tx.batch != nil && len(a.c.tx.batch.pins) == 0 && a.c.tx.batch.bytes > 0
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.sent + a.pending
	for _, ref := range a.queue[a.head:] {
		ref.Release()
	}
	a.queue, a.head = a.queue[:0], 0
	return n
}

// TestMemoryIsLetGo: neither Deregister nor Quiesce waits for a peer that does not read, and queued
// frames are sent as posted even if their memory changes afterwards.
func TestMemoryIsLetGo(t *testing.T) {
	for name, letGo := range map[string]func(a *lengthFramed, g *regmem.Registry, r *regmem.Region) error{
		"Deregister": func(_ *lengthFramed, g *regmem.Registry, r *regmem.Region) error { return g.Deregister(r) },
		"Quiesce": func(a *lengthFramed, g *regmem.Registry, r *regmem.Region) error {
			a.c.Quiesce()
			return g.Deregister(r) // r has no pins left
		},
		"Both": func(a *lengthFramed, g *regmem.Registry, r *regmem.Region) error {
			go a.c.Quiesce()
			return g.Deregister(r)
		},
	} {
		everyKind(t, func(t *testing.T, k kind) {
			t.Run(name, func(t *testing.T) {
				a, b := k.connect(t)
				g := regmem.New(regmem.Limits{})
				const piece = 70000
				mem := make([]byte, 240*piece)
				for i := range len(mem) / piece {
					copy(mem[i*piece:], bytes.Repeat([]byte{byte(i + 1)}, piece))
				}
				r, err := g.Register(mem, regmem.Options{})
				if err != nil {
					t.Fatal(err)
				}
				n := fullSocket(t, a, r, piece)
				if n == len(mem)/piece {
					t.Fatal("everything was sent")
				}
				done := make(chan error, 1)
				go func() { done <- letGo(a, g, r) }()
				if err := testkit.Await(t, "the memory is let go", done); err != nil {
					t.Error(err)
				}
				clear(mem) // the memory belongs to the test again
				var fs [][]byte
				for i := range n {
					fs = append(fs, bytes.Repeat([]byte{byte(i + 1)}, piece))
				}
				got := b.expect(t, fs)
				b.c.Start(nil)
				testkit.Await(t, "what was on its way", got)
			})
		})
	}
}

// TestQuiesceWaits: Quiesce waits for running methods of the protocol.
func TestQuiesceWaits(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		inside, leave := make(chan struct{}), make(chan struct{})
		b.got = func([]byte) { close(inside); <-leave }
		b.c.Start(nil)
		a.c.Start(nil)
		a.post([]byte("x"))
		a.c.Kick()
		testkit.Await(t, "Receive runs", inside)
		quiet := make(chan struct{})
		go func() { b.c.Quiesce(); close(quiet) }()
		select {
		case <-quiet:
			t.Error("Quiesce returned while Receive runs")
		case <-time.After(5 * time.Millisecond):
		}
		close(leave)
		testkit.Await(t, "Quiesce", quiet)
	})
}

// TestQuiesceWaitsForSent: Quiesce returns after Sent for every frame the kernel has taken. The
// peer may end the connection as soon as such a frame arrives.
func TestQuiesceWaitsForSent(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		inside, leave := make(chan struct{}), make(chan struct{})
		a.taken = func() { close(inside); <-leave }
		got := make(chan struct{})
		b.got = func([]byte) { close(got) }
		b.c.Start(nil)
		a.c.Start(nil)
		a.post([]byte("x"))
		go a.c.Kick()
		testkit.Await(t, "Sent runs", inside)
		testkit.Await(t, "the peer", got)
		quiet := make(chan struct{})
		go func() { a.c.Quiesce(); close(quiet) }()
		select {
		case <-quiet:
			t.Error("Quiesce returned before Sent")
		case <-time.After(5 * time.Millisecond):
		}
		close(leave)
		testkit.Await(t, "Quiesce", quiet)
	})
}

// TestSendFails: the protocol receives the peer's last frames before it is notified that sending
// failed.
func TestSendFails(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		x, peer := k.pair(t)
		p := newFramed(x, k.opt)
		last := p.expect(t, [][]byte{[]byte("because")})
		p.c.Start(nil)
		if _, err := peer.Write(stream([][]byte{[]byte("because")})); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		err := error(nil)
		for end := time.Now().Add(testkit.Patience); err == nil && time.Now().Before(end); {
			p.post(make([]byte, 5000))
			p.c.Kick()
			select {
			case err = <-p.noSend:
			case <-time.After(time.Millisecond):
			}
		}
		if err == nil {
			t.Fatal("sending to a peer that is gone does not fail")
		}
		testkit.Await(t, "the peer's last words", last)
		testkit.Await(t, "Failed", p.failed)
		p.c.Kick() // has no effect
		p.close(t)
	})
}

// TestLastWords: frames the peer sent before the connection broke are received before the failure
// is reported, whatever delays the receiver.
func TestLastWords(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		x, peer := k.pair(t)
		p := newFramed(x, k.opt)
		last := p.expect(t, [][]byte{[]byte("because")})
		p.c.Start(nil)
		time.Sleep(2 * time.Millisecond) // the passive goroutine waits for the socket
		p.c.att.Lock()
		if _, err := peer.Write(stream([][]byte{[]byte("because")})); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		testkit.Eventually(t, "sending fails", func() bool {
			p.post(make([]byte, 5000))
			p.c.Kick()
			return p.c.tx.state.Load() == dead
		})
		select {
		case err := <-p.failed:
			t.Errorf("failed with %v before the last words were heard", err)
		case <-time.After(5 * time.Millisecond):
		}
		heard := time.Now()
		p.c.att.Unlock()
		testkit.Await(t, "Failed", p.failed)
		select {
		case <-last:
		default:
			// On a portable stream, the failure waits for the reader for a limited time.
			if p.c.sock.Load() != nil || time.Since(heard) < lastWords {
				t.Error("the last words were not heard")
			}
		}
		p.close(t)
	})
}

// TestNothingBeforeStart: nothing is received before Start, even if sending fails.
func TestNothingBeforeStart(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		x, peer := k.pair(t)
		p := newFramed(x, k.opt)
		p.got = func([]byte) { t.Error("received before Start") }
		if _, err := peer.Write(stream([][]byte{[]byte("because")})); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		if p.c.Poll() {
			t.Error("polled before Start")
		}
		testkit.Eventually(t, "sending fails", func() bool {
			p.post(make([]byte, 5000))
			p.c.Kick()
			return len(p.noSend) > 0
		})
		p.close(t)
	})
}

// late is a protocol that posts a frame, with a Kick, just after Fill has found an empty queue.
type late struct {
	*lengthFramed
	left int // frames to post; guarded by the send role
}

func (p *late) Fill(b *Batch) {
	p.lengthFramed.Fill(b)
	if p.left > 0 {
		p.left--
		p.post([]byte("late"))
		p.c.Kick()
	}
}

func TestKickWhileRoleEnds(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.proto = &late{lengthFramed: a, left: 3}
		w := []byte("late")
		done := b.expect(t, [][]byte{w, w, w})
		b.c.Start(nil)
		a.c.Kick()
		testkit.Await(t, "what was posted late", done)
	})
}

// counted is a protocol that counts its calls of Fill. With one, each Fill sees at most one frame.
type counted struct {
	*lengthFramed
	fills int  // guarded by the send role
	one   bool // each Fill sees at most one frame
}

func (p *counted) Fill(b *Batch) {
	p.fills++
	if p.one {
		p.mu.Lock()
		rest := p.queue[min(p.head+1, len(p.queue)):]
		p.queue = p.queue[:min(p.head+1, len(p.queue))]
		p.mu.Unlock()
		p.lengthFramed.Fill(b)
		p.mu.Lock()
		p.queue = append(p.queue, rest...)
		p.mu.Unlock()
		if len(rest) > 0 {
			b.LeaveMore()
		}
		return
	}
	p.lengthFramed.Fill(b)
}

// TestFillsOnce: Fill is called once for a batch that takes the whole queue, and once per batch if
// it leaves frames.
func TestFillsOnce(t *testing.T) {
	for _, one := range []bool{false, true} {
		t.Run(fmt.Sprintf("one=%t", one), func(t *testing.T) {
			x, y := testkit.TCPPair(t)
			a, b := newFramed(x, Options{}), newFramed(y, Options{})
			if a.c.take(); a.c.sock.Load() == nil {
				t.Skip("there is no fast path on this system")
			}
			p := &counted{lengthFramed: a, one: one}
			a.c.proto = p
			w := []byte("frame")
			done := b.expect(t, [][]byte{w, w, w})
			b.c.Start(nil)
			for range 3 {
				a.post(slices.Clone(w))
			}
			a.c.Kick()
			testkit.Await(t, "the frames", done)
			want := 1
			if one {
				want = 3
			}
			if p.fills != want {
				t.Errorf("%d Fills, want %d", p.fills, want)
			}
			a.close(t)
			b.close(t)
		})
	}
}

// TestHoldSeesClosing: a deregistration that began before the sender registered as a holder still
// gets its pins back.
func TestHoldSeesClosing(t *testing.T) {
	g := regmem.New(regmem.Limits{})
	mem := make([]byte, 3*CopyLimit)
	for i := range mem {
		mem[i] = 7
	}
	r, err := g.Register(mem, regmem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := r.Access(r.Base(), uint64(len(mem)), nil, nil, regmem.LocalRead)
	b := batches.Get().(*Batch)
	b.Data(ref)
	s := &sender{batch: b}
	done := make(chan error, 1)
	go func() { done <- g.Deregister(r) }()
	testkit.Eventually(t, "the deregistration waits", ref.Closing)
	s.mu.Lock()
	s.holdLocked()
	s.mu.Unlock()
	if err := testkit.Await(t, "Deregister", done); err != nil {
		t.Error(err)
	}
	clear(mem)
	if !bytes.Equal(b.vecs[0], bytes.Repeat([]byte{7}, len(mem))) {
		t.Error("the batch lost its bytes")
	}
	s.release()
	b.reset()
	batches.Put(b)
}

// TestBatchBounds: a batch reports full before it overflows.
func TestBatchBounds(t *testing.T) {
	b := batches.Get().(*Batch)
	defer func() { b.reset(); batches.Put(b) }()
	headers := 0
	for !b.Full() {
		b.Header(512)
		headers++
	}
	if headers < 100 {
		t.Errorf("full after %d headers", headers)
	}
	b.reset()
	long := make([]byte, CopyLimit+1)
	n := 0
	for !b.Full() {
		b.Header(20)
		b.Bytes(long)
		b.Header(4)
		n++
	}
	b.close()
	if len(b.vecs) > maxVecs || b.Len() != n*(20+len(long)+4) {
		t.Errorf("%d vectors, %d bytes for %d frames", len(b.vecs), b.Len(), n)
	}
	b.reset()
	for range 10 {
		b.Header(8)
		for range min(b.Pieces(), 20) {
			b.Bytes(make([]byte, 100))
		}
	}
	b.reset()
	for !b.Full() {
		b.Bytes(make([]byte, 64<<10))
	}
	if b.FullFor(true) {
		t.Error("full for the rest of a message that is told ahead too")
	}
	for !b.FullFor(true) {
		b.Bytes(make([]byte, 64<<10))
	}
	if b.Len() < 1<<20 || b.Len() > 1200<<10 {
		t.Errorf("full for it with %d bytes", b.Len())
	}
}

// TestPartialWrites checks that the bytes of a batch are written in order, however many the kernel
// takes at a time, also if the memory of the batch is deregistered in between.
func TestPartialWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := batches.Get().(*Batch)
		defer func() { b.reset(); batches.Put(b) }()
		var want []byte
		var mems [][]byte
		for i := range rapid.IntRange(1, 30).Draw(t, "pieces") {
			if rapid.Bool().Draw(t, "header") {
				n := rapid.IntRange(1, 512).Draw(t, "n")
				h := b.Header(n)
				for j := range h {
					h[j] = byte(i)
				}
				want = append(want, h...)
			} else {
				m := bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, 3*CopyLimit).Draw(t, "m"))
				mems = append(mems, m)
				b.Bytes(m)
				want = append(want, m...)
			}
		}
		b.close()
		if b.Len() != len(want) {
			t.Fatalf("length %d, want %d", b.Len(), len(want))
		}
		var got []byte
		for {
			if rapid.IntRange(0, 5).Draw(t, "own") == 0 {
				b.own()
				for _, m := range mems {
					clear(m)
				}
			}
			n := rapid.IntRange(0, b.Len()).Draw(t, "taken")
			left := n
			for _, v := range b.vecs {
				k := min(left, len(v))
				got = append(got, v[:k]...)
				left -= k
			}
			done := b.written(n)
			if done != (len(got) == len(want)) || b.Len() != len(want)-len(got) {
				t.Fatalf("after %d of %d bytes: done %t, %d left", len(got), len(want), done, b.Len())
			}
			if done {
				break
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatal("the bytes are not those posted")
		}
	})
}

// TestPinned: pieces of one region share one pin, which is released when the batch is written or
// copied.
func TestPinned(t *testing.T) {
	g := regmem.New(regmem.Limits{})
	mem := make([]byte, 2*CopyLimit+2)
	r, _ := g.Register(mem, regmem.Options{})
	other, _ := g.Register(mem, regmem.Options{Guarded: true})
	b := batches.Get().(*Batch)
	defer func() { b.reset(); batches.Put(b) }()
	if _, ok := b.Pinned(r); ok {
		t.Fatal("an empty batch holds a pin")
	}
	ref, _ := g.Access(r.Handle(), r.Base(), CopyLimit+1, nil, nil, regmem.LocalRead)
	b.Data(ref)
	pin, ok := b.Pinned(r)
	if _, also := b.Pinned(other); !ok || also {
		t.Fatalf("%t, %t", ok, also)
	}
	p, _ := regmem.Within(pin, r.Base()+CopyLimit+1, CopyLimit+1, nil, nil, regmem.LocalRead)
	b.Data(p)
	if len(b.pins) != 1 || len(b.vecs) != 2 {
		t.Errorf("%d pins, %d vectors", len(b.pins), len(b.vecs))
	}
	copy(mem[CopyLimit+1:], "yes")
	b.own()
	if err := g.Deregister(r); err != nil {
		t.Fatal(err)
	}
	clear(mem)
	if string(b.vecs[1][:3]) != "yes" {
		t.Error("a piece without a pin of its own was not copied")
	}
	if _, ok := b.Pinned(r); ok {
		t.Error("the pin is still told of")
	}
	ref, _ = g.Access(other.Handle(), other.Base(), 1, nil, nil, regmem.LocalRead)
	b.Pin(ref)
	if _, ok := b.Pinned(other); ok {
		t.Error("guarded memory is shared")
	}
}

// TestEmptyRounds: Kick sends a queued frame even if it finds the queue empty several times first,
// because other goroutines kick meanwhile.
func TestEmptyRounds(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		done := b.expect(t, [][]byte{[]byte("at last")})
		b.c.Start(nil)
		rounds := 0
		a.filled = func() {
			switch rounds++; {
			case rounds == turns+2:
				a.post([]byte("at last"))
				fallthrough
			case rounds < turns+2:
				a.c.Kick()
			}
		}
		a.c.Start(nil)
		a.c.Kick()
		testkit.Await(t, "the frame", done)
		testkit.Eventually(t, "it is reported as sent", func() bool { return a.sentFrames() == 1 })
	})
}

// TestShutdownBehindFrame: a frame queued before Shutdown is sent before the end of the stream,
// even if the sender has just found the queue empty.
func TestShutdownBehindFrame(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		done := b.expect(t, [][]byte{[]byte("last words")})
		b.c.Start(nil)
		first := true
		a.filled = func() {
			if first {
				first = false
				a.post([]byte("last words"))
				a.c.Shutdown()
			}
		}
		a.c.Start(nil)
		a.c.Kick()
		testkit.Await(t, "the frame", done)
		if err := testkit.Await(t, "the end", b.failed); err != io.EOF {
			t.Errorf("the stream ended with %v", err)
		}
	})
}
