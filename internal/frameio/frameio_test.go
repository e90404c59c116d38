package frameio

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"viaduct/internal/regmem"
)

// lengthFramed is a protocol for tests: a frame is a 4-byte length and that
// many bytes. Frames of at least directMin bytes are read straight into place.
type lengthFramed struct {
	c *Conn

	mu      sync.Mutex
	queue   []regmem.Ref
	part    int // of the first in queue: already sent
	sent    int // frames accepted by the kernel
	pending int

	got     func([]byte)
	cur     []byte
	missing int
	drained int
	failed  chan error
}

const directMin = 2048

func (p *lengthFramed) Fill(b *Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 && !b.Full() {
		r := p.queue[0]
		p.queue = p.queue[1:]
		binary.BigEndian.PutUint32(b.Header(4), uint32(len(r.B)))
		b.Data(r)
		p.pending++
	}
}

func (p *lengthFramed) Sent() {
	p.mu.Lock()
	p.sent += p.pending
	p.pending = 0
	p.mu.Unlock()
}

func (p *lengthFramed) Receive(b []byte, mayDirect bool) (n, direct int, err error) {
	for len(b)-n >= 4 {
		l := int(binary.BigEndian.Uint32(b[n:]))
		have := len(b) - n - 4
		if have >= l {
			p.got(b[n+4 : n+4+l])
			n += 4 + l
			continue
		}
		if mayDirect && l >= directMin {
			p.cur = append(make([]byte, 0, l), b[n+4:]...)
			p.missing = l - have
			return len(b), p.missing, nil
		}
		break
	}
	return n, 0, nil
}

func (p *lengthFramed) Direct(iov [][]byte) ([][]byte, error) {
	at := len(p.cur)
	mid := at + p.missing/2
	return append(iov, p.cur[at:mid:mid], p.cur[mid:at+p.missing:at+p.missing]), nil
}

func (p *lengthFramed) DirectDone(n int) error {
	p.cur = p.cur[:len(p.cur)+n]
	if p.missing -= n; p.missing == 0 {
		p.got(p.cur)
	}
	return nil
}

func (p *lengthFramed) Drained()         { p.drained++ }
func (p *lengthFramed) Failed(err error) { p.failed <- err }

func (p *lengthFramed) post(b []byte) {
	p.mu.Lock()
	p.queue = append(p.queue, regmem.Ref{B: b})
	p.mu.Unlock()
}

func pair(t testing.TB, portable bool) (a, b *lengthFramed) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type acc struct {
		c   net.Conn
		err error
	}
	ch := make(chan acc, 1)
	go func() { c, err := l.Accept(); ch <- acc{c, err} }()
	c1, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	mk := func(nc net.Conn) *lengthFramed {
		p := &lengthFramed{failed: make(chan error, 1), got: func([]byte) {}}
		p.c = New(nc, p, Options{Portable: portable})
		t.Cleanup(func() { p.c.Close() })
		return p
	}
	return mk(c1), mk(r.c)
}

func fillPattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(seed*131 + i*7)
	}
}

func TestEveryByteArrivesInOrder(t *testing.T) {
	for _, portable := range []bool{false, true} {
		for _, polling := range []bool{false, true} {
			if portable && polling {
				continue
			}
			t.Run(map[bool]string{false: "fast", true: "portable"}[portable]+map[bool]string{false: "/passive", true: "/polling"}[polling], func(t *testing.T) {
				a, b := pair(t, portable)
				const frames = 3000
				var n int
				done := make(chan struct{})
				b.got = func(p []byte) {
					want := make([]byte, size(n))
					fillPattern(want, n)
					if string(p) != string(want) {
						t.Errorf("frame %d differs (%d bytes, want %d)", n, len(p), len(want))
					}
					if n++; n == frames {
						close(done)
					}
				}
				a.c.Start(nil)
				b.c.Start(nil)
				for i := range frames {
					buf := make([]byte, size(i))
					fillPattern(buf, i)
					a.post(buf)
					if i%7 == 0 {
						a.c.Kick()
					}
				}
				a.c.Kick()
				wait(t, b, polling, done)
				a.c.Shutdown()
				select {
				case err := <-b.failed:
					if err != io.EOF {
						t.Errorf("after Shutdown: %v, want EOF", err)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("no end of stream")
				}
				a.c.Close()
				b.c.Close()
				a.mu.Lock()
				defer a.mu.Unlock()
				if a.sent != frames {
					t.Errorf("%d frames reported as sent, want %d", a.sent, frames)
				}
			})
		}
	}
}

func size(i int) int { return (i * i * 37) % 70000 % (1 + i%5*17000) }

func wait(t *testing.T, p *lengthFramed, polling bool, done chan struct{}) {
	deadline := time.After(30 * time.Second)
	for {
		if polling {
			p.c.Poll()
			select {
			case <-done:
				return
			case <-deadline:
				t.Fatal("timeout")
			default:
				continue
			}
		}
		select {
		case <-done:
			return
		case <-deadline:
			t.Fatal("timeout")
		}
	}
}

// While a peer does not read, Deregister must not wait for it.
func TestDeregisterDoesNotWaitForTheSocket(t *testing.T) {
	for _, portable := range []bool{false, true} {
		a, b := pair(t, portable)
		g := regmem.New(regmem.Limits{})
		buf := make([]byte, 32<<20)
		fillPattern(buf, 1)
		r, err := g.Register(buf, regmem.Options{})
		if err != nil {
			t.Fatal(err)
		}
		const piece = 1 << 20
		var queued int
		for off := 0; off < len(buf); off += piece {
			ref, out := r.Access(r.Base()+uint64(off), piece, nil, nil, regmem.LocalRead)
			if out != regmem.OK {
				t.Fatal(out)
			}
			a.post(ref.B) // frames borrow; only the batch's pin counts here
			ref.Release()
			queued++
		}
		// Let the batch hold a real pin.
		a.mu.Lock()
		for i := range a.queue {
			ref, _ := r.Access(regmem.Address(a.queue[i].B), piece, nil, nil, regmem.LocalRead)
			a.queue[i] = ref
		}
		a.mu.Unlock()
		a.c.Start(nil)
		a.c.Kick()
		time.Sleep(20 * time.Millisecond) // not for luck: any moment will do
		// Frames not yet in a batch keep their pins; drop them as an engine
		// does that validates again when it builds the frame.
		a.mu.Lock()
		for _, ref := range a.queue {
			ref.Release()
		}
		a.queue = nil
		a.mu.Unlock()
		done := make(chan error)
		go func() { done <- g.Deregister(r) }()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("Deregister waits for a peer that does not read")
		}
		clear(buf)
		ok := make(chan struct{})
		first := true
		b.got = func(p []byte) {
			if first {
				want := make([]byte, piece)
				copy(want, p[:0])
				for i := range p {
					if p[i] != byte(131+i*7) {
						t.Errorf("byte %d of the relinquished frame is wrong", i)
						break
					}
				}
				first = false
				close(ok)
			}
		}
		b.c.Start(nil)
		if !portable {
			<-ok
		}
		a.c.Close()
		b.c.Close()
	}
}

func TestAbortResets(t *testing.T) {
	a, b := pair(t, false)
	a.c.Start(nil)
	b.c.Start(nil)
	a.c.Abort()
	select {
	case err := <-b.failed:
		if err == nil || err == io.EOF {
			t.Errorf("peer of an abort got %v, want a reset", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("abort not seen")
	}
	a.c.Close()
	a.c.Close()
}

func BenchmarkSmallFrames(b *testing.B) {
	p, q := pair(b, false)
	n := 0
	q.got = func([]byte) { n++ }
	p.c.Start(nil)
	q.c.Start(nil)
	buf := make([]byte, 64)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.post(buf)
		if i%64 == 63 {
			p.c.Kick()
		}
	}
	p.c.Kick()
}
