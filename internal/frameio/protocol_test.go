package frameio

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"viaduct/internal/regmem"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// lengthFramed is a protocol for tests. A frame is a 4-byte length followed by as many bytes.
// Frames of at least directMin bytes are read directly to their place. lengthFramed allocates
// nothing per frame.
type lengthFramed struct {
	c *Conn

	mu      sync.Mutex
	queue   []regmem.Ref // guarded by mu
	head    int          // guarded by mu: index in queue of the first frame
	pending int          // guarded by mu: number of frames of the last Fill
	sent    int          // guarded by mu: number of frames that the kernel has taken

	filled  func() // called at the end of each Fill, without mu; nil: none
	taken   func() // called at the beginning of each Sent, without mu; nil: none
	got     func([]byte)
	place   []byte // place of the frame that is read directly
	at      int
	missing int
	calls   int // calls of Plan
	drained int

	enough func() bool           // reports whether Receive leaves the next frames; nil: never
	keep   func() bool           // returns the result of Deliver; nil: false
	refuse atomic.Pointer[error] // the error of Receive and Landed from now on
	over   atomic.Bool           // Close has returned
	late   atomic.Int32          // calls after Close
	fails  atomic.Int32
	failed chan error
	noSend chan error
}

const (
	directMin = 2048
	maxTest   = 2 << 20 // longest frame of these tests
)

func newFramed(nc net.Conn, o Options) *lengthFramed {
	p := &lengthFramed{failed: make(chan error, 1), noSend: make(chan error, 1), got: func([]byte) {}}
	p.c = New(nc, p, o)
	return p
}

func (p *lengthFramed) Deliver() bool { return p.keep != nil && p.keep() }

func (p *lengthFramed) check() {
	if p.over.Load() {
		p.late.Add(1)
	}
}

func (p *lengthFramed) Fill(b *Batch) {
	p.check()
	if p.filled != nil {
		defer p.filled()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.head < len(p.queue) && !b.Full() {
		r := p.queue[p.head]
		p.queue[p.head] = regmem.Ref{}
		p.head++
		binary.BigEndian.PutUint32(b.Header(4), uint32(len(r.B())))
		if b.Data(r) != nil {
			clear(r.B()) // not reached, because these tests queue only long frames from guarded memory
		}
		p.pending++
	}
	if p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	}
}

func (p *lengthFramed) Sent() {
	p.check()
	if p.taken != nil {
		p.taken()
	}
	p.mu.Lock()
	p.sent += p.pending
	p.pending = 0
	p.mu.Unlock()
}

func (p *lengthFramed) Receive(b []byte, mayPlan bool) (n, missing int, err error) {
	p.check()
	if e := p.refuse.Load(); e != nil {
		return 0, 0, *e
	}
	for len(b)-n >= 4 {
		if p.enough != nil && p.enough() {
			return n, 0, ErrEnough
		}
		l := int(binary.BigEndian.Uint32(b[n:]))
		have := len(b) - n - 4
		if have >= l {
			p.got(b[n+4 : n+4+l])
			n += 4 + l
			continue
		}
		if mayPlan && l >= directMin {
			if cap(p.place) < l {
				p.place = make([]byte, maxTest)
			}
			p.at = copy(p.place[:l], b[n+4:])
			p.missing = l - have
			return len(b), p.missing, nil
		}
		break
	}
	if n == len(b) && p.enough != nil && p.enough() {
		return n, 0, ErrEnough
	}
	return n, 0, nil
}

// Plan returns places for the missing bytes in two pieces, and sometimes only for some of them.
func (p *lengthFramed) Plan(to *Plan) {
	p.check()
	if p.missing == 0 {
		return
	}
	end := p.at + p.missing
	mid := p.at + p.missing/2
	to.Frame = append(to.Frame, p.place[p.at:mid:mid])
	if p.calls++; p.calls%5 != 0 || mid == p.at {
		to.Frame = append(to.Frame, p.place[mid:end:end])
	}
}

func (p *lengthFramed) Landed(_ *Plan, n, _ int) (taken, missing int, err error) {
	p.check()
	if e := p.refuse.Load(); e != nil {
		return 0, 0, *e
	}
	p.at += n
	if p.missing -= n; p.missing == 0 && n > 0 {
		p.got(p.place[:p.at])
	}
	return 0, p.missing, nil
}

func (p *lengthFramed) Drained() { p.check(); p.drained++ }

func (p *lengthFramed) Failed(err error) {
	p.check()
	if p.fails.Add(1) == 1 {
		p.failed <- err
	}
}

func (p *lengthFramed) SendFailed(err error) {
	p.check()
	select {
	case p.noSend <- err:
	default:
	}
}

func (p *lengthFramed) post(b []byte) { p.postRef(regmem.Of(b)) }

func (p *lengthFramed) postRef(r regmem.Ref) {
	p.mu.Lock()
	p.queue = append(p.queue, r)
	p.mu.Unlock()
}

func (p *lengthFramed) sentFrames() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

// close closes the connection and checks that no method of the protocol is called afterwards.
func (p *lengthFramed) close(t testing.TB) {
	t.Helper()
	if err := p.c.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	p.over.Store(true)
	p.c.Kick()
	p.c.Poll()
	p.c.Unpoll()
	if n := p.late.Load(); n > 0 {
		t.Errorf("%d calls of the protocol after Close", n)
	}
	if n := p.fails.Load(); n > 1 {
		t.Errorf("Failed was called %d times", n)
	}
}

// A kind is a way to connect two Conns.
type kind struct {
	name string
	opt  Options
	pair func(t testing.TB) (a, b net.Conn)
}

var kinds = []kind{
	{"tcp", Options{}, testkit.TCPPair},
	{"owned", Options{}, ownedPair},
	{"portable", Options{Portable: true}, testkit.TCPPair},
	{"pipe", Options{}, func(testing.TB) (a, b net.Conn) { return testkit.Pipe() }},
}

func ownedPair(t testing.TB) (a, b net.Conn) {
	a, b = testkit.TCPPair(t)
	return sock.Own(a), sock.Own(b)
}

func (k kind) connect(t testing.TB) (a, b *lengthFramed) {
	t.Helper()
	x, y := k.pair(t)
	a, b = newFramed(x, k.opt), newFramed(y, k.opt)
	t.Cleanup(func() { a.close(t); b.close(t) })
	return a, b
}

// everyKind runs f once for each kind.
func everyKind(t *testing.T, f func(t *testing.T, k kind)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { f(t, k) })
	}
}

// frame returns the payload of frame i. Its length depends on i: 0, short, close to the limits, or
// long.
func frame(i int) []byte {
	sizes := [...]int{0, 1, 3, 100, CopyLimit, CopyLimit + 1, directMin - 1, directMin, 5000, 17, 40000, 9, 70000}
	b := make([]byte, sizes[i%len(sizes)]+i%3)
	r := rand.NewPCG(uint64(i), 1)
	for at := range b {
		if at%8 == 0 {
			binary.NativeEndian.PutUint64(scratch8[:], r.Uint64())
			copy(b[at:], scratch8[:])
		}
	}
	return b
}

var scratch8 [8]byte // frames are made in one goroutine, before the test begins

// frames returns the first n frames.
func frames(n int) [][]byte {
	fs := make([][]byte, n)
	for i := range fs {
		fs[i] = frame(i)
	}
	return fs
}

// stream returns the wire form of frames.
func stream(fs [][]byte) (s []byte) {
	for _, f := range fs {
		s = binary.BigEndian.AppendUint32(s, uint32(len(f)))
		s = append(s, f...)
	}
	return s
}

// expect makes p compare the received frames with fs. The returned channel is closed after the last
// frame.
func (p *lengthFramed) expect(t testing.TB, fs [][]byte) <-chan struct{} {
	done := make(chan struct{})
	n := 0
	p.got = func(b []byte) {
		switch {
		case n >= len(fs):
			t.Errorf("a frame of %d bytes too many", len(b))
			return
		case string(b) != string(fs[n]):
			t.Errorf("frame %d differs (%d bytes, want %d)", n, len(b), len(fs[n]))
		}
		if n++; n == len(fs) {
			close(done)
		}
	}
	return done
}

var errRefused = errors.New("refused by the test")
