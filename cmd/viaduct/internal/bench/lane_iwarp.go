package bench

import (
	"context"
	"errors"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/iwarp"
	"viaduct/samehost"
)

// iWARP has no flow control for Sends. Therefore a receiver sends a credit each time half of its
// receives are used: a message of creditSize bytes.
const creditSize = 2

// An iwarpLane is a queue pair with requests made in advance.
type iwarpLane struct {
	s   spec
	q   *iwarp.QueuePair
	mem *iwarp.MemoryRegion
	buf []byte
	window[iwarp.SendWR]
	slab  []byte
	size  int // bytes of each receive
	done  []iwarp.Completion
	used  int // Sends since the last credit: those sent, or those received
	allow int // total of Sends for which the peer has receives
}

func iwarpConfig(s spec, u *addr.URL) (*iwarp.Config, error) {
	c := transport.IWARPConfig(u, nil)
	c.Congestion = s.Congestion
	depth := 2*s.window() + 16
	c.SendDepth, c.RecvDepth = depth, depth
	c.Logger = nil
	return c, nil
}

func (l *iwarpLane) prepare(q *iwarp.QueuePair) error {
	l.q = q
	work := footprint
	if l.s.bare() {
		work = 64
	}
	l.buf = make([]byte, max(work, l.s.Size))
	var err error
	if l.mem, err = q.Register(l.buf, iwarp.RemoteRead|iwarp.RemoteWrite); err != nil {
		return err
	}
	count, size := receivesFor(l.s)
	l.size, l.slab = size, make([]byte, count*size)
	l.allow = count - 2 // one for the end message, one to make the number even
	l.done = make([]iwarp.Completion, min(64, l.s.window()))
	for i := range count {
		if err := l.repost(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (l *iwarpLane) path() samehost.Path { return l.q.Path() }

func (l *iwarpLane) repost(i uint64) error {
	return l.q.PostRecv(iwarp.RecvWR{ID: i, SG: []iwarp.SGE{iwarp.Buf(l.slab[int(i)*l.size:][:l.size])}})
}

func (l *iwarpLane) use(t target) {
	if l.s.bare() {
		return
	}
	slots := max(1, len(l.buf)/max(1, l.s.Size))
	op := map[string]iwarp.Op{OpWrite: iwarp.OpWrite, OpRate: iwarp.OpWrite, OpRead: iwarp.OpRead}[l.s.Op]
	for i := range l.s.window() {
		off := i % slots * l.s.Size
		l.ring = append(l.ring, iwarp.SendWR{Op: op, SG: []iwarp.SGE{l.mem.SGE(off, l.s.Size)},
			Remote: iwarp.RemoteAddr{STag: t.Handle, TO: t.Address + uint64(off)}})
	}
}

func (l *iwarpLane) post(n int) error {
	if l.s.Op == OpSend {
		if err := l.credits(n); err != nil {
			return err
		}
	}
	return l.postRing(n, l.q.PostBatch)
}

// credits waits until the peer has receives for n more Sends.
func (l *iwarpLane) credits(n int) error {
	for l.used+n > l.allow {
		k, err := l.recv(context.Background(), false)
		if err != nil {
			return err
		}
		if k != creditSize {
			return errors.New("bench: a credit was expected")
		}
		l.used -= l.allow / 2
	}
	l.used += n
	return nil
}

func (l *iwarpLane) reap(ctx context.Context, poll bool) (int, error) {
	if l.left == 0 {
		return 0, nil
	}
	n := l.q.SendCQ().PollN(l.done)
	for i := 0; n == 0; i++ {
		if !poll {
			c, err := l.q.SendCQ().Wait(ctx)
			if err != nil {
				return 0, err
			}
			l.done[0], n = c, 1
			break
		}
		if i&0xfff == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		n = l.q.SendCQ().PollN(l.done)
	}
	l.left -= n
	for i := range n {
		if err := l.done[i].Err(); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (l *iwarpLane) send(ctx context.Context, n int, poll bool) error {
	if err := l.q.Post(iwarp.SendWR{SG: []iwarp.SGE{l.mem.SGE(0, n)}}); err != nil {
		return err
	}
	l.left++
	for l.left > 0 {
		if _, err := l.reap(ctx, poll); err != nil {
			return err
		}
	}
	return nil
}

func (l *iwarpLane) recv(ctx context.Context, poll bool) (int, error) {
	c, ok := l.q.RecvCQ().Poll()
	for i := 0; !ok; i++ {
		if !poll {
			var err error
			if c, err = l.q.RecvCQ().Wait(ctx); err != nil {
				return 0, err
			}
			break
		}
		if i&0xfff == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		c, ok = l.q.RecvCQ().Poll()
	}
	if err := c.Err(); err != nil {
		return 0, err
	}
	if err := l.repost(c.ID); err != nil {
		return 0, err
	}
	if l.s.Op == OpSend && c.Len > creditSize {
		if l.used++; l.used == l.allow/2 {
			l.used = 0
			if err := l.send(ctx, creditSize, false); err != nil {
				return 0, err
			}
		}
	}
	return int(c.Len), nil
}

func (l *iwarpLane) close() {
	if l.s.Op != OpSetup {
		l.q.Abort()
	}
	l.q.Close()
}

type iwarpHost struct {
	s spec
	u *addr.URL
	l *iwarp.Listener
}

func openIWARP(s spec) (host, error) {
	u, err := addr.Parse(s.scheme() + "://" + s.Host + ":0" + s.query())
	if err != nil {
		return nil, err
	}
	c, err := iwarpConfig(s, u)
	if err != nil {
		return nil, err
	}
	l, err := iwarp.Listen(u.HostPort(), c)
	if err != nil {
		return nil, err
	}
	return &iwarpHost{s, u.WithPort(l.Addr()), l}, nil
}

func (h *iwarpHost) url() string { return h.u.String() }

func (h *iwarpHost) accept(ctx context.Context) (lane, target, error) {
	r, err := h.l.AcceptRequest(ctx)
	if err != nil {
		return nil, target{}, err
	}
	l := &iwarpLane{s: h.s}
	if err := l.prepare(r.QueuePair()); err != nil {
		r.Reject(nil)
		return nil, target{}, err
	}
	if _, err := r.Accept(nil); err != nil {
		return nil, target{}, err
	}
	l.use(target{})
	return l, target{l.mem.TO(), l.mem.STag()}, nil
}

func (h *iwarpHost) close() { h.l.Close() }

// An iwarpDialer shares one device between the lanes of a client.
type iwarpDialer struct {
	s spec
	u *addr.URL
	c *iwarp.Config
}

func newIWARPDialer(s spec, u *addr.URL) (dialer, error) {
	c, err := iwarpConfig(s, u)
	if err != nil {
		return nil, err
	}
	return &iwarpDialer{s, u, c}, nil
}

func (d *iwarpDialer) dial(ctx context.Context) (dialed, error) {
	l := &iwarpLane{s: d.s}
	c := *d.c
	c.Prepare = l.prepare
	if _, err := iwarp.Dial(ctx, d.u.HostPort(), &c); err != nil {
		return nil, err
	}
	return l, nil
}

func (d *iwarpDialer) close() {}
