package fcip

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/fault"
	"viaduct/internal/fc"
	"viaduct/internal/frameio"
	"viaduct/internal/perturb"
	"viaduct/internal/sock"
	"viaduct/samehost"
)

// SpecialTimeout is the time limit for a Special Frame. If a limit is used, RFC 3821 requires at
// least 90 s. [FCFS-2.4-5]
const SpecialTimeout = 90 * time.Second

const (
	// slabSize is the number of queued bytes at which Room returns 0.
	slabSize = 256 << 10
	// slabSlack is the additional size of a slab for control frames.
	slabSlack = 64 << 10
)

// A Device is the end of a link. The link calls its methods from one goroutine at a time, without
// holding a lock.
type Device interface {
	// Frames handles the frames of a read. recv calls yield with each frame, valid during the call
	// of yield. A device in need of a lock takes the lock once around recv.
	Frames(recv func(yield func(f *fc.Frame)))
	// Room is called when a link whose Room has returned 0 has room again.
	Room()
	// Down is called once, when the link has ended. err is the reason.
	Down(err error)
}

// A Config holds the settings of an end of a link.
type Config struct {
	FabricName fc.WWN // Switch_Name (or Port_Name) of this end; not zero
	Entity     uint64 // distinguishes this end from others with the same name
	Peer       fc.WWN // expected name of the other end; 0 accepts any
	WrapConn   func(net.Conn) net.Conn
	Congestion string // congestion control of the socket; "" keeps the system's
	Logger     *slog.Logger
	// KATOV is K_A_TOV. If a link is idle for half of K_A_TOV, LKA tests the link. If the other end
	// is silent for twice K_A_TOV, the link is closed. 0 means 60 s.
	KATOV time.Duration
	// KeepAlive is the period of TCP's own keepalive. 0 means 15 s, and a negative value switches
	// keepalive off.
	KeepAlive time.Duration
	// SameHost selects whether the bytes go through shared memory if the other end is on this host.
	// A listener returned by Listen offers shared memory.
	SameHost samehost.Policy
	// SameHostDir is a directory where processes of different network namespaces find each other.
	// With "" such processes do not find each other.
	SameHostDir string
}

// shares reports whether links may go through shared memory.
func (c *Config) shares() bool { return c.WrapConn == nil && sock.Shares(c.SameHost) }

// Listen returns ln, or a replacement for ln with shared memory.
func (c *Config) Listen(ln net.Listener) (net.Listener, error) {
	if !c.shares() {
		return ln, nil
	}
	return sock.OwnListener(ln, sock.Tuning{Congestion: c.Congestion, KeepAlive: c.KeepAlive,
		SameHost: c.SameHost, SameHostDir: c.SameHostDir})
}

// Stats has the counters of a link.
type Stats struct {
	SentFrames, RecvFrames uint64
	SentBytes, RecvBytes   uint64
	BadCRC                 uint64
	BadFrames              uint64 // malformed frames, which were dropped
	Overflow               uint64 // frames lost because the queue was full
}

// A Link is an FCIP link over one TCP connection. Send, Room and Flush may be
// called from any goroutine.
type Link struct {
	c    *frameio.Conn
	dev  Device
	peer fc.WWN // name of the other end

	mu      perturb.Mutex
	pend    []byte // guarded by mu: frames that the writer has not taken
	stalled bool   // guarded by mu: Room has returned 0
	fly     []byte // frames that are being written; owned by the send role

	frame  fc.Frame // owned by the receive role
	head   header   // owned by the receive role
	batch  []byte
	used   int
	rxErr  error
	feed   func(yield func(f *fc.Frame))
	stats  struct{ sentF, recvF, sentB, recvB, crc, bad, over atomic.Uint64 }
	closed atomic.Bool
	off    bool // the policy of this end excludes shared memory

	katov    time.Duration
	watchdog *time.Timer // set by Start
	heard    uint64      // number of frames at the last check; used by the watchdog only
	quiet    int         // number of checks without a new frame; used by the watchdog only
	answer   bool        // the answer to an LKA is queued; owned by the receive role
	once     sync.Once
	down     chan struct{}
	roomy    chan struct{} // has one slot; filled when there is room again
}

// Dial opens a link to address, in the form host:port. The link delivers frames after Start.
func Dial(ctx context.Context, address string, cfg Config) (*Link, error) {
	return dial(ctx, address, cfg, 0)
}

// dial is Dial with a time limit for the TCP connection. 0 means the system's limit.
func dial(ctx context.Context, address string, cfg Config, connect time.Duration) (*Link, error) {
	d := net.Dialer{Timeout: connect}
	peer := cfg.Peer
	for range 2 {
		nc, err := cfg.dial(ctx, &d, address)
		if err != nil {
			return nil, err
		}
		if cfg.WrapConn != nil {
			nc = cfg.WrapConn(nc)
		}
		s := newSpecial(&cfg, peer)
		echo, err := exchange(ctx, nc, &s)
		if err != nil {
			nc.Close()
			return nil, err
		}
		if s.accepts(echo) {
			return newLink(nc, cfg, echo.Destination)
		}
		nc.Close()
		// The acceptor has sent a name, so the next attempt asks for the acceptor by the sent name.
		want := s
		want.Changed, want.Destination = true, echo.Destination
		if peer != 0 || *echo != want || echo.Destination == 0 {
			return nil, fmt.Errorf("fcip: %s is not %v: it answers as %v", address, s.Destination, echo.Destination)
		}
		peer = echo.Destination
	}
	return nil, fmt.Errorf("fcip: %s changes its name", address)
}

// dial makes the TCP connection, and negotiates shared memory if cfg allows it.
func (c *Config) dial(ctx context.Context, d *net.Dialer, address string) (net.Conn, error) {
	dial := d.DialContext
	if c.shares() {
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return sock.Dial(ctx, d, network, address)
		}
	}
	nc, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := sock.ShareMemory(ctx, nc, c.SameHost, c.SameHostDir); err != nil { // only if the policy requires shared memory
		nc.Close()
		return nil, err
	}
	return nc, nil
}

func newSpecial(cfg *Config, dst fc.WWN) Special {
	var nonce [8]byte
	if !fault.On("fcip-nonce") {
		rand.Read(nonce[:]) // [FCFS-2.4-7]
	}
	katov := uint32(DefaultKATOV)
	if cfg.KATOV != 0 {
		katov = uint32(cfg.KATOV / time.Millisecond)
	}
	return Special{Source: cfg.FabricName, Entity: cfg.Entity, Nonce: binary.BigEndian.Uint64(nonce[:]),
		UsageFlags: UsageSOFf | UsageClass2 | UsageClass3, Destination: dst, KATOV: katov}
}

// exchange sends the Special Frame s and returns the echo.
func exchange(ctx context.Context, nc net.Conn, s *Special) (*Special, error) {
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	deadline := time.Now().Add(SpecialTimeout)
	nc.SetDeadline(deadline)
	if _, err := nc.Write(s.Append(nil)); err != nil {
		return nil, wrapCtx(ctx, err)
	}
	echo, err := readSpecial(nc)
	if err != nil {
		return nil, wrapCtx(ctx, err)
	}
	if !stop() {
		return nil, ctx.Err()
	}
	nc.SetDeadline(time.Time{})
	return echo, nil
}

func wrapCtx(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func readSpecial(r io.Reader) (*Special, error) {
	var b [SpecialLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	s, _, err := ParseSpecial(b[:])
	return &s, err
}

// An Acceptor turns the incoming TCP connections of a fabric entity into links. It remembers the
// last nonce of each address. [FCFS-2.4-4]
type Acceptor struct {
	cfg    Config
	mu     perturb.Mutex
	nonces map[string]uint64 // guarded by mu
}

// NewAcceptor returns an acceptor for connections to the entity named by cfg.
func NewAcceptor(cfg Config) *Acceptor {
	return &Acceptor{cfg: cfg, nonces: map[string]uint64{}}
}

// ErrRefused is the error of Accept for a connection to another name. Accept has sent this entity's
// name, and the initiator may connect again with this name.
var ErrRefused = errors.New("fcip: connection asked for another fabric entity")

// maxNonces is the maximum number of addresses whose last nonce is remembered.
const maxNonces = 4096

// Accept reads and answers the Special Frame of nc. Accept owns nc, and closes nc on an error.
func (a *Acceptor) Accept(ctx context.Context, nc net.Conn) (*Link, error) {
	if a.cfg.WrapConn != nil {
		nc = a.cfg.WrapConn(nc)
	}
	l, err := a.accept(ctx, nc)
	if err != nil {
		nc.Close()
	}
	return l, err
}

func (a *Acceptor) accept(ctx context.Context, nc net.Conn) (*Link, error) {
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	nc.SetDeadline(time.Now().Add(SpecialTimeout))
	s, err := readSpecial(nc)
	if err != nil {
		return nil, wrapCtx(ctx, err)
	}
	if err := sock.CheckShared(nc, a.cfg.SameHost); err != nil {
		return nil, err
	}
	host := ""
	if ra := nc.RemoteAddr(); ra != nil {
		host, _, _ = net.SplitHostPort(ra.String())
	}
	a.mu.Lock()
	last, seen := a.nonces[host]
	if len(a.nonces) >= maxNonces {
		clear(a.nonces)
	}
	a.nonces[host] = s.Nonce
	a.mu.Unlock()
	switch {
	case seen && last == s.Nonce && !fault.On("fcip-nonce-unchecked"):
		return nil, fmt.Errorf("fcip: nonce %016x was used before", s.Nonce)
	case s.Changed || s.Source == 0:
		return nil, fmt.Errorf("%w: special frame from %v", ErrFrame, s.Source)
	}
	echo, ok := s.answer(a.cfg.FabricName)
	if _, err := nc.Write(echo.Append(nil)); err != nil {
		return nil, err
	}
	if !ok {
		return nil, ErrRefused
	}
	if !stop() {
		return nil, ctx.Err()
	}
	nc.SetDeadline(time.Time{})
	return newLink(nc, a.cfg, s.Source)
}

func newLink(nc net.Conn, cfg Config, peer fc.WWN) (*Link, error) {
	if cfg.KATOV == 0 {
		cfg.KATOV = DefaultKATOV * time.Millisecond
	}
	l := &Link{peer: peer, off: !sock.Shares(cfg.SameHost), katov: cfg.KATOV, down: make(chan struct{}),
		roomy: make(chan struct{}, 1), pend: make([]byte, 0, slabSize+slabSlack),
		fly: make([]byte, 0, slabSize+slabSlack)}
	l.feed = l.each
	if err := sock.Tune(nc, sock.Tuning{KeepAlive: cfg.KeepAlive}); err != nil { // [FCFS-2.3-5]
		nc.Close()
		return nil, err
	}
	if cfg.Congestion != "" {
		sock.Tune(nc, sock.Tuning{Congestion: cfg.Congestion}) // an error is ignored, because the setting is optional
	}
	l.c = frameio.New(nc, (*protocol)(l), frameio.Options{})
	return l, nil
}

// Peer returns the name of the other end.
func (l *Link) Peer() fc.WWN { return l.peer }

// NetConn returns the TCP connection, for the addresses.
func (l *Link) NetConn() net.Conn { return l.c.NetConn() }

// Path reports whether the bytes of the link go through shared memory, and if not, why.
func (l *Link) Path() samehost.Path {
	if l.off {
		return samehost.Path{Why: sock.WhyOff}
	}
	return sock.PathOf(l.c.NetConn())
}

// Start begins to deliver frames to dev.
func (l *Link) Start(dev Device) {
	l.dev = dev
	l.watch()
	l.c.Start(nil)
}

// Send queues f. The next Flush writes f at the latest. If the queue has no room, Send drops and
// counts f.
func (l *Link) Send(f *fc.Frame) {
	l.mu.Lock()
	if len(l.pend)+MaxLen > cap(l.pend) {
		l.mu.Unlock()
		l.stats.over.Add(1)
		return
	}
	l.pend = Append(l.pend, f)
	l.mu.Unlock()
	l.stats.sentF.Add(1)
}

// Room returns a lower bound of the number of full-size data frames the link can take. If it is 0,
// the link calls the device's method Room when there is room again.
func (l *Link) Room() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := slabSize - len(l.pend); n > 0 {
		return (n + MaxLen - 1) / MaxLen
	}
	l.stalled = true
	return 0
}

// WaitRoom waits until the link has room or has ended. Only a forwarder that holds no lock and may
// delay later frames may call WaitRoom.
func (l *Link) WaitRoom() {
	for l.Room() == 0 {
		select {
		case <-l.roomy:
		case <-l.down:
			return
		}
	}
}

// Flush writes the queued frames, or makes another goroutine write them.
func (l *Link) Flush() { l.c.Kick() }

// Poll handles arrivals without blocking, and reports whether there were any; see frameio.
func (l *Link) Poll() bool { return l.c.Poll() }

// Unpoll announces that the caller stops polling.
func (l *Link) Unpoll() { l.c.Unpoll() }

// Quiesce waits until all earlier calls of device methods have returned.
func (l *Link) Quiesce() { l.c.Quiesce() }

// Close sends the queued frames, ends the link and waits until all goroutines of the link have
// ended. It does not call Down.
func (l *Link) Close() error {
	l.closed.Store(true)
	if l.watchdog != nil {
		l.watchdog.Stop()
	}
	l.once.Do(func() { close(l.down) })
	l.c.Kick()
	l.c.Shutdown()
	return l.c.CloseAfter(100 * time.Millisecond)
}

// Abort resets the connection without waiting. The device's Down is called with err.
func (l *Link) Abort(err error) {
	l.c.Abort()
	l.fail(err)
}

// Done returns a channel that is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.down }

func (l *Link) fail(err error) {
	l.once.Do(func() {
		close(l.down)
		if l.watchdog != nil {
			l.watchdog.Stop()
		}
		if l.dev != nil && !l.closed.Load() {
			l.dev.Down(err)
		}
	})
}

// Stats returns a copy of the counters.
func (l *Link) Stats() Stats {
	return Stats{SentFrames: l.stats.sentF.Load(), RecvFrames: l.stats.recvF.Load(), SentBytes: l.stats.sentB.Load(),
		RecvBytes: l.stats.recvB.Load(), BadCRC: l.stats.crc.Load(), BadFrames: l.stats.bad.Load(),
		Overflow: l.stats.over.Load()}
}

// A protocol is a Link with the methods called by frameio.Conn.
type protocol Link

var _ frameio.Protocol = (*protocol)(nil)

// Fill passes all queued frames to the writer.
func (p *protocol) Fill(b *frameio.Batch) {
	l := (*Link)(p)
	if len(l.fly) > 0 {
		return
	}
	l.mu.Lock()
	l.pend, l.fly = l.fly[:0], l.pend
	l.mu.Unlock()
	if len(l.fly) > 0 {
		l.stats.sentB.Add(uint64(len(l.fly)))
		b.Bytes(l.fly)
	}
}

// Sent is called when a batch has been written. Only then waiters for room wake up, because their
// frames then go into the written buffer, still in the processor's cache.
func (p *protocol) Sent() {
	p.mu.Lock()
	p.fly = p.fly[:0]
	if len(p.pend) == 0 {
		p.pend, p.fly = p.fly, p.pend
	}
	p.mu.Unlock()
	p.wake()
}

// wake notifies a stalled device.
func (p *protocol) wake() {
	l := (*Link)(p)
	l.mu.Lock()
	tell := l.stalled && len(l.pend) < slabSize/2
	if tell {
		l.stalled = false
	}
	l.mu.Unlock()
	if tell {
		select {
		case l.roomy <- struct{}{}:
		default:
		}
		if l.dev != nil {
			l.dev.Room()
		}
	}
}

// Receive handles the complete frames at the front of b and returns their total length, 0 if the
// first frame is incomplete.
func (p *protocol) Receive(b []byte, _ bool) (int, int, error) {
	l := (*Link)(p)
	if len(b) < 16 {
		return 0, 0, nil
	}
	if n, err := FrameLen(b); err != nil {
		return 0, 0, err
	} else if len(b) < n {
		return 0, 0, nil
	}
	l.batch, l.used, l.rxErr = b, 0, nil
	l.dev.Frames(l.feed)
	l.stats.recvB.Add(uint64(l.used))
	l.batch = nil
	if l.answer {
		l.answer = false
		l.c.Kick()
	}
	return l.used, 0, l.rxErr
}

// each calls yield with the frames of the current batch.
func (l *Link) each(yield func(f *fc.Frame)) {
	frames := uint64(0)
	for l.rxErr == nil && l.used < len(l.batch) {
		n, err := Parse(l.batch[l.used:], &l.frame)
		switch {
		case err == nil:
			l.used += n
			frames++
			if l.frame.SOF == fc.SOFf && l.keepAlive(&l.frame) {
				continue
			}
			yield(&l.frame)
			if l.frame.Taker != nil {
				frames += l.follow(l.batch[l.used-n : l.used])
			}
		case err == io.ErrUnexpectedEOF:
			l.stats.recvF.Add(frames)
			return
		case errors.Is(err, ErrSync):
			l.rxErr = err // [FCFS-2.3-4]
		case errors.Is(err, fc.ErrCRC): // [FCFS-2.1-6]
			l.stats.crc.Add(1)
			l.used += n
		default:
			l.stats.bad.Add(1)
			if n == 0 {
				l.rxErr = err
			}
			l.used += n
		}
	}
	l.stats.recvF.Add(frames)
}

// Drained implements [frameio.Protocol].
func (p *protocol) Drained() {}

// Failed handles the end of the connection.
func (p *protocol) Failed(err error) { (*Link)(p).fail(err) }
