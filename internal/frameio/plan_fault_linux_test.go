package frameio

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/regmem"
	"viaduct/internal/testkit"
)

// A faultyPredictor has partly unmapped memory.
type faultyPredictor struct {
	predictor
	mem []byte
}

func (g *faultyPredictor) Plan(p *Plan) {
	p.Guarded = true
	g.predictor.Plan(p)
}

// A losingPredictor has memory that is unmapped between the read and Landed.
type losingPredictor struct{ faultyPredictor }

func (g *losingPredictor) Landed(*Plan, int, int) (taken, missing int, err error) {
	unix.Mprotect(g.mem, unix.PROT_NONE)
	return 0, 0, nil
}

// mapping returns size bytes of memory. Only the first room bytes are accessible. room is a
// multiple of the page size.
func mapping(t *testing.T, size, room int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	if room == size {
		return mem
	}
	if err := unix.Mprotect(mem[room:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return mem
}

// TestPredictionFaults: unmapped memory ends the connection if bytes belong there, at once and
// without another arrival, but not if bytes were only predicted to belong there.
func TestPredictionFaults(t *testing.T) {
	const usual, room, size = 20000, 36 << 10, 1 << 20
	rnd := rand.New(rand.NewPCG(1, 2))
	start := func(t *testing.T, p Protocol) (*Conn, func([]byte)) {
		a, b := testkit.TCPPair(t)
		c := New(b, p, Options{})
		t.Cleanup(func() { c.Close() })
		if c.StartPolled(nil); !c.InPlace() {
			t.Fatal("the bytes are not read to where they belong")
		}
		c.rx.large = true // the state after a long frame
		return c, func(p []byte) { arrive(t, a, c, p) }
	}

	t.Run("right", func(t *testing.T) {
		g := &faultyPredictor{mem: mapping(t, size, room)}
		g.out, g.usual = g.mem[:0:size], usual
		g.predict = g.same
		c, send := start(t, g)
		var stream, want []byte
		for range 3 { // the second one does not fit
			stream, want = predictedFrame(stream, want, usual, rnd)
		}
		send(stream)
		if _, err := c.receiveForTest(); !errors.Is(err, syscall.EFAULT) {
			t.Fatalf("bytes for memory that is gone: %v", err)
		}
		if n := min(len(g.out), room); n == 0 || !bytes.Equal(g.out[:n], want[:n]) {
			t.Errorf("%d bytes before it, or others", n)
		}
	})

	t.Run("wrong", func(t *testing.T) {
		g := &faultyPredictor{mem: mapping(t, size, room)}
		g.out, g.usual = g.mem[room-16<<10:room-16<<10:size], usual
		g.predict = g.same
		c, send := start(t, g)
		var stream, want []byte
		// The payloads fit into the accessible memory, but not together with their headers.
		for range 1200 {
			stream, want = predictedFrame(stream, want, 10, rnd)
		}
		send(stream)
		for len(g.out) < len(want) {
			if got, err := c.receiveForTest(); err != nil || !got {
				t.Fatalf("after %d bytes: %v, %v", len(g.out), got, err)
			}
		}
		if g.plans != 1 || g.landed != 1 {
			t.Errorf("%d plans, %d of them landed; expected the one that could not be read to", g.plans, g.landed)
		}
		if !bytes.Equal(g.out, want) {
			t.Error("other bytes")
		}
	})

	t.Run("gone before it is taken back", func(t *testing.T) {
		g := &losingPredictor{faultyPredictor{mem: mapping(t, size, size)}}
		g.out, g.usual = g.mem[:0:size], usual
		g.predict = g.same
		c, send := start(t, g)
		stream, _ := predictedFrame(nil, nil, usual, rnd)
		send(stream)
		if _, err := c.receiveForTest(); !errors.Is(err, regmem.ErrFault) {
			t.Errorf("what came to memory that is gone: %v", err)
		}
	})
}

// arrive sends p to c and waits until it has arrived.
func arrive(t *testing.T, a net.Conn, c *Conn, p []byte) {
	t.Helper()
	if _, err := a.Write(p); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the bytes", func() bool { return c.Pending() >= len(p) })
}

// TestFaultWhileWaiting checks that unmapped memory is an error even if the region was deregistered
// while the sender waited. Zeros sent instead would look like data.
func TestFaultWhileWaiting(t *testing.T) {
	const size = 1 << 20
	f, mem := mappedFile(t, size)
	g := regmem.New(regmem.Limits{})
	r, err := g.Register(mem, regmem.Options{Guarded: true})
	if err != nil {
		t.Fatal(err)
	}
	a, b := kinds[0].connect(t)
	a.c.Start(nil)
	if !a.c.InPlace() {
		t.Fatal("the bytes are not written from where they are")
	}
	for range 200 { // more than the sockets hold; b does not read yet
		ref, out := r.Access(r.Base(), 60000, nil, nil, regmem.LocalRead)
		if out != regmem.OK {
			t.Fatal(out)
		}
		a.postRef(ref)
	}
	a.c.Kick()
	// Between the loss of the memory and the copy nothing may be written, because the kernel would
	// find the loss then, and the socket may become free at any time. So both are under one lock.
	testkit.Eventually(t, "the full sockets", func() bool {
		a.c.tx.mu.Lock()
		defer a.c.tx.mu.Unlock()
		if !a.c.tx.waiting {
			return false
		}
		if err := f.Truncate(0); err != nil {
			t.Error(err)
		}
		a.c.tx.batch.own() // as a deregistration does
		return true
	})
	b.c.Start(nil)
	err = testkit.Await(t, "the failure", a.failed)
	if !errors.Is(err, regmem.ErrFault) {
		t.Errorf("failed with %v", err)
	}
}
