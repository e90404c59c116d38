// Package msgfake is a pair of message connections within one process, for tests of the code above
// package msg. The pair checks handles, ranges and rights like a real transport, and refuses access
// to a region after Close.
package msgfake

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/samehost"
)

// Errors of misuse.
var (
	ErrAccess = errors.New("msgfake: access refused")
	ErrBroken = errors.New("msgfake: connection broken")
)

type shared struct {
	mu     sync.Mutex
	broken chan struct{}
	once   sync.Once
}

// A Conn is one end of a pair.
type Conn struct {
	s       *shared
	peer    *Conn
	in      chan msg.Message
	closed  chan struct{}
	once    sync.Once
	max     int
	regions map[uint32]*region // guarded by s.mu
	next    uint32             // guarded by s.mu
	posted  []error
}

// Pair returns two connected ends that take messages of up to max bytes.
func Pair(max int) (a, b *Conn) {
	s := &shared{broken: make(chan struct{})}
	mk := func(h uint32) *Conn {
		return &Conn{s: s, in: make(chan msg.Message, 16), closed: make(chan struct{}), max: max,
			regions: map[uint32]*region{}, next: h}
	}
	a, b = mk(100), mk(500)
	a.peer, b.peer = b, a
	return a, b
}

type region struct {
	c    *Conn
	b    []byte
	a    msg.Access
	h    uint32
	addr uint64
}

func (r *region) Remote() msg.Remote { return msg.Remote{Address: r.addr, Handle: r.h} }

func (r *region) Close() error {
	r.c.s.mu.Lock()
	defer r.c.s.mu.Unlock()
	delete(r.c.regions, r.h)
	return nil
}

// Break cuts the connection like the crash of a host.
func (c *Conn) Break() { c.s.once.Do(func() { close(c.s.broken) }) }

// Regions returns the number of regions registered at this end.
func (c *Conn) Regions() int {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return len(c.regions)
}

type fakeAddr string

func (fakeAddr) Network() string  { return "fake" }
func (a fakeAddr) String() string { return string(a) }

// LocalAddr is a made-up address.
func (c *Conn) LocalAddr() net.Addr { return fakeAddr("local") }

// RemoteAddr is a made-up address.
func (c *Conn) RemoteAddr() net.Addr { return fakeAddr("remote") }

// MaxMessage returns the max of Pair.
func (c *Conn) MaxMessage() int { return c.max }

// Send copies the message into the peer's queue. It waits while the queue has 16 messages.
func (c *Conn) Send(ctx context.Context, m msg.Message) error {
	if len(m.Data) > c.max {
		return msg.ErrTooLong
	}
	m.Data = append([]byte(nil), m.Data...)
	select {
	case <-c.s.broken:
		return ErrBroken
	default:
	}
	select {
	case c.peer.in <- m:
		return nil
	case <-c.s.broken:
		return ErrBroken
	case <-c.peer.closed:
		return ErrBroken
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Recv waits for a message. The error is io.EOF after the peer's Close, and ErrBroken after Break.
func (c *Conn) Recv(ctx context.Context) (msg.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	default:
	}
	select {
	case m := <-c.in:
		return m, nil
	case <-c.s.broken:
		return msg.Message{}, ErrBroken
	case <-c.peer.closed:
		return msg.Message{}, io.EOF
	case <-c.closed:
		return msg.Message{}, net.ErrClosed
	case <-ctx.Done():
		return msg.Message{}, ctx.Err()
	}
}

// Register makes b accessible to the peer.
func (c *Conn) Register(b []byte, a msg.Access) (msg.Region, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.next++
	r := &region{c: c, b: b, a: a, h: c.next, addr: uint64(c.next) << 32}
	c.regions[r.h] = r
	return r, nil
}

// PostWrite copies at once. Reap returns the outcome.
func (c *Conn) PostWrite(local msg.Region, off, n int, remote msg.Remote) error {
	return c.post(local, off, n, remote, msg.RemoteWrite)
}

// PostRead copies at once. Reap returns the outcome.
func (c *Conn) PostRead(local msg.Region, off, n int, remote msg.Remote) error {
	return c.post(local, off, n, remote, msg.RemoteRead)
}

func (c *Conn) post(local msg.Region, off, n int, remote msg.Remote, want msg.Access) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	select {
	case <-c.s.broken:
		c.posted = append(c.posted, ErrBroken)
		return nil
	default:
	}
	if n > c.max {
		c.posted = append(c.posted, msg.ErrTooLong)
		return nil
	}
	l := local.(*region)
	r := c.peer.regions[remote.Handle]
	if c.regions[l.h] != l || r == nil || r.a&want == 0 || remote.Address < r.addr ||
		remote.Address-r.addr > uint64(len(r.b)) ||
		uint64(n) > uint64(len(r.b))-(remote.Address-r.addr) {
		c.posted = append(c.posted, ErrAccess)
		return nil
	}
	far := r.b[remote.Address-r.addr:][:n]
	near := l.b[off:][:n]
	if want == msg.RemoteWrite {
		far, near = near, far
	}
	c.posted = append(c.posted, place(near, far))
	return nil
}

// place copies memory that may have been unmapped. If an access faults, place returns ErrAccess.
func place(to, from []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = ErrAccess
		}
	}()
	copy(to, from)
	return nil
}

// Reap returns the outcome of the oldest copy.
func (c *Conn) Reap(context.Context) error {
	if len(c.posted) == 0 {
		return errors.New("msgfake: nothing posted")
	}
	err := c.posted[0]
	c.posted = c.posted[1:]
	return err
}

// Path reports no kind of path.
func (c *Conn) Path() samehost.Path { return samehost.Path{Why: "nothing is connected"} }

// Depth is small, so that tests reach the limits.
func (c *Conn) Depth() (writes, reads int) { return 5, 3 }

// Shutdown does nothing, because Send has already delivered the messages.
func (c *Conn) Shutdown(context.Context) error { return nil }

// Close ends both directions.
func (c *Conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}
