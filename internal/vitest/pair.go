package vitest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"viaduct/vi"
)

// A pair is two connected VIs, each with a region of memory. v[0] has requested the connection.
type pair struct {
	*env
	v   [2]*vi.VI
	mem [2]*vi.Region
}

// memSize is the length of the region of each side.
const memSize = 1 << 17

// connected returns a connected pair. opts change the attributes of the VIs.
func (e *env) connected(opts ...func(*vi.Attributes)) *pair {
	e.Helper()
	p := e.unconnected(opts...)
	p.connect()
	return p
}

// unconnected returns a pair without a connection.
func (e *env) unconnected(opts ...func(*vi.Attributes)) *pair {
	e.Helper()
	p := &pair{env: e}
	for side := range p.v {
		p.v[side] = e.vi(side, opts...)
		p.mem[side] = e.region(side, memSize)
	}
	if e.trial != nil {
		e.trial.pair(p.v[0], p.v[1])
	}
	return p
}

func (p *pair) connect() {
	p.Helper()
	p.must(p.connectVIs(p.v[0], p.v[1]))
}

// accept waits in a goroutine for a request at an address of side 1 and accepts the request for v.
// It returns a channel for the result.
func (e *env) accept(ctx context.Context, at vi.Address, v *vi.VI) <-chan error {
	accepted := make(chan error, 1)
	go func() {
		r, err := e.nics[1].ConnectWait(ctx, at)
		if err == nil {
			err = r.Accept(ctx, v)
		}
		accepted <- err
	}()
	return accepted
}

// connectVIs connects VI a of side 0 with VI b of side 1; a sends the request.
func (e *env) connectVIs(a, b *vi.VI) error {
	local, remote := e.address(0), e.address(1)
	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	accepted := e.accept(ctx, remote, b)
	err := e.request(ctx, a, local, remote)
	if e.trial != nil {
		e.trial.pair(a, b)
	}
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-accepted)
}

// request repeats a connection request until the other side waits for the request, and returns the
// result.
func (e *env) request(ctx context.Context, v *vi.VI, local, remote vi.Address) error {
	for {
		_, err := v.ConnectRequest(ctx, local, remote)
		if !errors.Is(err, vi.ErrNoMatch) || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// inTime calls wait with the suite's patience. It keeps no context until the end of the test, as
// ctx does, because a test may wait for tens of thousands of descriptors.
func (e *env) inTime(wait func(context.Context) (*vi.Descriptor, error)) (*vi.Descriptor, error) {
	ctx, cancel := context.WithTimeout(context.Background(), e.patience())
	defer cancel()
	return wait(ctx)
}

// reap removes the first descriptor of a queue, checks that the removed descriptor is want, and
// returns the status.
func (e *env) reap(what string, wait func(context.Context) (*vi.Descriptor, error), want *vi.Descriptor) vi.Status {
	e.Helper()
	d, err := e.inTime(wait)
	if d == nil {
		e.Fatalf("%s: %v", what, err)
	}
	if want != nil && d != want {
		e.Errorf("%s: another descriptor came back than the one posted", what) // [VIA-3.1-2]
	}
	s := d.Status()
	if s&vi.StatusDone == 0 || s.Failed() != (err != nil) || err != nil && !errors.Is(err, vi.ErrDescriptor) {
		e.Errorf("%s: status %v with error %v", what, s, err)
	}
	return s
}

func (e *env) reapSend(v *vi.VI, want *vi.Descriptor) vi.Status {
	e.Helper()
	return e.reap("send queue", v.SendWait, want)
}

func (e *env) reapRecv(v *vi.VI, want *vi.Descriptor) vi.Status {
	e.Helper()
	return e.reap("receive queue", v.RecvWait, want)
}

// wantStatus checks that status got, without the immediate bit, is in want.
func (e *env) wantStatus(what string, got vi.Status, want ...vi.Status) {
	e.Helper()
	if !slices.Contains(want, got&^(vi.StatusImmediate|vi.StatusDone)) {
		e.Errorf("%s: status %v (%#x), want %v", what, got, uint32(got), want)
	}
}

// post posts d to the send queue of a side and returns d.
func (p *pair) post(side int, d *vi.Descriptor) *vi.Descriptor {
	p.Helper()
	p.must(p.v[side].PostSend(d))
	return d
}

func (p *pair) postRecv(side int, d *vi.Descriptor) *vi.Descriptor {
	p.Helper()
	p.must(p.v[side].PostRecv(d))
	return d
}

// seg returns a segment of a side's memory.
func (p *pair) seg(side, off, n int) vi.Segment { return p.mem[side].Segment(off, n) }

// fill writes a pattern to a side's memory and returns the bytes of the pattern.
func (p *pair) fill(side, off, n int, seed uint64) []byte {
	b := p.mem[side].Bytes()[off : off+n]
	pattern(b, seed)
	return b
}

// pattern fills b with bytes depending on seed and offset.
func pattern(b []byte, seed uint64) {
	r := rand.NewPCG(seed, 0x5eed)
	for len(b) > 0 {
		x := r.Uint64()
		for i := 0; i < 8 && len(b) > 0; i++ {
			b[0] = byte(x >> (8 * i))
			b = b[1:]
		}
	}
}

// works checks that the pair can send a message in each direction.
func (p *pair) works() {
	p.Helper()
	for from := range 2 {
		to := 1 - from
		r := p.postRecv(to, vi.NewRecv(p.seg(to, memSize-512, 512)))
		want := p.fill(from, memSize-1024, 200, uint64(from)+77)
		s := p.post(from, vi.NewSend(p.seg(from, memSize-1024, 200)).WithImmediate(0xfeed))
		p.wantStatus("send", p.reapSend(p.v[from], s), vi.StatusOpSend)
		p.wantStatus("receive", p.reapRecv(p.v[to], r), vi.StatusOpReceive)
		if got := p.mem[to].Bytes()[memSize-512:][:200]; r.Length != 200 || r.ImmediateData != 0xfeed ||
			!bytes.Equal(got, want) {
			p.wrongf("message of %d bytes with immediate data %#x came wrong", r.Length, r.ImmediateData)
		}
	}
}

// drain reaps all descriptors of v. It fails the test if a descriptor does not complete.
func (e *env) drain(v *vi.VI) {
	e.Helper()
	for _, wait := range []func(context.Context) (*vi.Descriptor, error){v.SendWait, v.RecvWait} {
		for {
			d, err := e.inTime(wait)
			if d == nil {
				if !errors.Is(err, vi.ErrQueueEmpty) {
					e.Fatal(err)
				}
				break
			}
		}
	}
}

// waitState polls the state of a VI until the state is want. [VIA-2.2-16]
func (e *env) waitState(v *vi.VI, want vi.State) {
	e.Helper()
	e.eventually(want.String(), func() bool {
		s, _, _, _ := v.Query()
		return s == want
	})
}

func flow(a *vi.Attributes) { a.FlowControl = true }
