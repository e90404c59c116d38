package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/iwarp"
	"viaduct/samehost"
)

// iwarpTransport carries messages over an RDMAP Stream: MPA, DDP, RDMAP.
var iwarpTransport = Transport{
	Scheme:    "iwarp",
	DialMsg:   bounded(dialIWARP),
	ListenMsg: listenIWARP,
}

// iwarpClose bounds the wait for the peer's end of a stream.
const iwarpClose = 2 * time.Second

// IWARPConfig returns the configuration for an address. By default CRCs are on, FPDUs fit TCP's
// segments and the MPA revision is 2. o may be nil.
func IWARPConfig(u *addr.URL, o *Options) *iwarp.Config {
	window := int(u.Number("window", 0))
	c := &iwarp.Config{
		Device: iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: !u.Bool("crc")}),
		IRD:    window, ORD: window,
		Interop: iwarp.Interop{
			Markers: u.Bool("markers"), FPDUSize: int(u.Number("fpdu", 0)),
			Plain: u.Choice("mpa") == "1", ClientServer: !u.Bool("p2p"),
		},
		Immediate: true, CloseTimeout: iwarpClose,
	}
	c.SameHost, c.SameHostDir = sameHost(u)
	if o != nil {
		c.Congestion, c.Logger = o.Congestion, o.Env.Log
	}
	return c
}

// An iwarpConn is a msg.Conn over a queue pair.
type iwarpConn struct {
	q    *iwarp.QueuePair
	mtu  int
	slab *slab // memory of the posted receives
	held int   // the receive whose data the caller may read, -1 if none

	ops  *shell.Operations
	pace *pace
	gone context.Context // ends when nothing more will be received
	once sync.Once
}

// receives returns the size of each posted receive and the longest message, in bytes.
func receives(u *addr.URL, o *Options) (size, mtu int) {
	def := uint64(o.MTU)
	if def == 0 {
		def = math.MaxUint32
	}
	n := u.Number("mtu", def)
	size = o.RecvSize
	if size == 0 {
		size = int(n)
	}
	return size, int(min(n, math.MaxInt32))
}

// prepare returns a function that posts count receives of size bytes before the peer can send.
func (c *iwarpConn) prepare(size, count int) func(*iwarp.QueuePair) error {
	return func(q *iwarp.QueuePair) error {
		var err error
		if c.slab, err = slabs.get(size, count); err != nil {
			return err
		}
		c.q, c.held = q, -1
		for i := range count {
			if err := c.postRecv(i); err != nil {
				return err
			}
		}
		return nil
	}
}

// postRecv posts receive i of the slab.
func (c *iwarpConn) postRecv(i int) error {
	return c.q.PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{iwarp.Buf(c.slab.at(i))}})
}

// started starts a goroutine to end the context gone when the peer has closed its direction or the
// stream has ended.
func (c *iwarpConn) started() {
	ctx, cancel := context.WithCancel(context.Background())
	c.gone = ctx
	go func() {
		defer cancel()
		select {
		case <-c.q.PeerClosed():
		case <-c.q.Ended():
		}
	}()
}

// iwarpHint adds a hint to err if a peer accepted the TCP connection and then ended the start-up.
// Such a peer usually speaks another protocol.
func iwarpHint(err error, o *Options) error {
	if o.TLSDial != nil && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		return shell.Hint(err, "the other side may speak without TLS: leave --tls out")
	}
	if _, ok := errors.AsType[*iwarp.RejectedError](err); ok {
		return shell.Hint(err, "check that the other side speaks iwarp at this port: it may speak SDP")
	}
	m, ok := errors.AsType[*mpa.Error](err)
	if !ok || m.Code != mpa.CodeClosed && m.Code != mpa.CodeFrame {
		return err
	}
	return shell.Hint(err, "check that the other side speaks iwarp at this port, and whether it wants --tls; ?mpa=1 if it knows revision 1 only")
}

func dialIWARP(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error) {
	cfg := IWARPConfig(u, o)
	size, mtu := receives(u, o)
	c := &iwarpConn{mtu: mtu}
	var err error
	cfg.PD = cfg.Device.NewPD()
	if c.pace, err = newPace(o.RecvCount, cfg.PD.Register); err != nil {
		return nil, err
	}
	cfg.Private = c.pace.private()
	cfg.Prepare = c.prepare(size, o.RecvCount)
	if o.TLSDial != nil {
		cfg.TLS = serverName(o.TLSDial, u.Host)
	}
	if o.Env.Capture != nil {
		cfg.WrapConn = func(nc net.Conn) net.Conn { return o.Env.Wrap(nc, true) }
	}
	if _, err := iwarp.Dial(ctx, u.HostPort(), cfg); err != nil {
		c.release()
		return nil, fmt.Errorf("connect to %s: %w", u, iwarpHint(err, o))
	}
	c.pace.learn(c.q.PeerPrivate())
	c.started()
	watch(c, u, o, dialled)
	return c, nil
}

// An iwarpListener accepts streams with count posted receives of size bytes each.
type iwarpListener struct {
	l     *iwarp.Listener
	u     *addr.URL
	o     *Options
	size  int
	mtu   int
	count int
}

func listenIWARP(u *addr.URL, o *Options) (msg.Listener, error) {
	cfg := IWARPConfig(u, o)
	size, mtu := receives(u, o)
	cfg.TLS = o.TLSListen
	if o.Env.Capture != nil {
		cfg.WrapConn = func(nc net.Conn) net.Conn { return o.Env.Wrap(nc, false) }
	}
	if base := o.Env.Inherited(u.HostPort()); base != nil {
		return &iwarpListener{iwarp.NewListener(base, cfg), u, o, size, mtu, o.RecvCount}, nil
	}
	l, err := iwarp.Listen(u.HostPort(), cfg)
	if err != nil {
		return nil, err
	}
	return &iwarpListener{l, u, o, size, mtu, o.RecvCount}, nil
}

func (l *iwarpListener) Accept(ctx context.Context) (msg.Conn, error) {
	for {
		r, err := l.l.AcceptRequest(ctx)
		if err != nil {
			return nil, err
		}
		c := &iwarpConn{mtu: l.mtu}
		if err = c.prepare(l.size, l.count)(r.QueuePair()); err == nil {
			c.pace, err = newPace(l.count, r.QueuePair().Register)
		}
		if err != nil {
			r.Reject(nil)
			c.release()
			continue
		}
		c.pace.learn(r.Private())
		if _, err := r.Accept(c.pace.private()); err != nil {
			c.release()
			continue // the peer has closed the connection already
		}
		c.started()
		watch(c, l.u, l.o, accepted)
		return c, nil
	}
}

func (l *iwarpListener) Addr() net.Addr { return l.l.Addr() }
func (l *iwarpListener) Close() error   { return l.l.Close() }

func (c *iwarpConn) LocalAddr() net.Addr  { return c.q.LocalAddr() }
func (c *iwarpConn) RemoteAddr() net.Addr { return c.q.RemoteAddr() }
func (c *iwarpConn) Path() samehost.Path  { return c.q.Path() }
func (c *iwarpConn) MaxMessage() int      { return c.mtu }

// Depth returns 16 Writes, and as Reads the negotiated ORD: the stream would only queue more Reads.
func (c *iwarpConn) Depth() (writes, reads int) { return 16, max(1, c.q.ORD()) }

// failure translates err, the error of an operation. If the stream has ended, failure returns the
// reason. The reason matches io.EOF after an orderly end. Otherwise failure returns err. failure
// may wait up to iwarpClose for the reason in the peer's Terminate.
func (c *iwarpConn) failure(err error) error {
	switch {
	case errors.Is(err, iwarp.ErrFlushed), errors.Is(err, iwarp.ErrClosed), errors.Is(err, iwarp.ErrPeerClosed):
	case errors.Is(err, iwarp.ErrRemote): // the peer's Terminate names this request as the cause
	default:
		return err
	}
	select {
	case <-c.q.Ended():
	case <-c.q.PeerClosed(): // an orderly end: a Terminate would have arrived before
	case <-time.After(iwarpClose): // the Terminate with the reason is still on its way
	}
	why := c.q.Err()
	if why == nil || errors.Is(why, io.EOF) {
		return fmt.Errorf("the connection ended: %w", io.EOF)
	}
	if te, ok := errors.AsType[*iwarp.TerminateError](why); ok && te.Remote &&
		rdmap.Layer(te.Layer) == rdmap.LayerRDMAP && te.Type == rdmap.TypeProtection {
		return &msg.RemoteAccessError{Cause: why}
	}
	return why
}

func (c *iwarpConn) Send(ctx context.Context, m msg.Message) error {
	if len(m.Data) > c.mtu {
		return fmt.Errorf("%w: %d bytes, at most %d", msg.ErrTooLong, len(m.Data), c.mtu)
	}
	if err := c.pace.take(ctx, c); err != nil {
		return err
	}
	wr := iwarp.SendWR{Op: iwarp.OpSend, SG: []iwarp.SGE{iwarp.Buf(m.Data)}}
	if m.IsWide {
		wr = iwarp.SendWR{Op: iwarp.OpImmediate, Immediate: m.Wide}
	}
	if err := c.q.Post(wr); err != nil {
		return c.failure(err)
	}
	c.ops.Send(len(m.Data))
	return c.Reap(ctx)
}

func (c *iwarpConn) Recv(ctx context.Context) (msg.Message, error) {
	if c.held >= 0 {
		i := c.held
		c.held = -1
		c.slab.repost(i)
		err := c.postRecv(i)
		if err != nil && !errors.Is(err, iwarp.ErrPeerClosed) && !errors.Is(err, iwarp.ErrClosed) {
			return msg.Message{}, err
		}
		if err == nil {
			c.pace.reposted()
		}
	}
	done, ok := c.q.RecvCQ().Poll()
	if !ok {
		both, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(c.gone, func() { cancel(io.EOF) })
		var err error
		done, err = c.q.RecvCQ().Wait(both)
		stop()
		cancel(nil)
		if err != nil && ctx.Err() != nil {
			return msg.Message{}, context.Cause(ctx)
		}
		if err != nil {
			return msg.Message{}, c.failure(iwarp.ErrFlushed)
		}
	}
	if err := done.Err(); err != nil {
		return msg.Message{}, c.failure(err)
	}
	c.held = int(done.ID)
	c.slab.filled(c.held, int(done.Len))
	c.ops.Receive(int(done.Len))
	m := msg.Message{Data: c.slab.at(c.held)[:done.Len]}
	if done.HasImm {
		m = msg.Message{Wide: done.Imm, IsWide: true}
	}
	return m, nil
}

// An iwarpRegion is memory registered for a stream.
type iwarpRegion struct{ r *iwarp.MemoryRegion }

func (r *iwarpRegion) Remote() msg.Remote {
	return msg.Remote{Address: r.r.TO(), Handle: r.r.STag()}
}

func (r *iwarpRegion) Close() error { return r.r.Close() }

func (c *iwarpConn) Register(b []byte, a msg.Access) (msg.Region, error) {
	var access iwarp.Access
	if a&msg.RemoteRead != 0 {
		access |= iwarp.RemoteRead
	}
	if a&msg.RemoteWrite != 0 {
		access |= iwarp.RemoteWrite
	}
	r, err := c.q.Register(b, access, iwarp.RegionOptions{Guarded: a&msg.Guarded != 0})
	if err != nil {
		return nil, err
	}
	return &iwarpRegion{r}, nil
}

func (c *iwarpConn) PostWrite(local msg.Region, off, n int, remote msg.Remote) error {
	return c.postRDMA(iwarp.OpWrite, local, off, n, remote)
}

func (c *iwarpConn) PostRead(local msg.Region, off, n int, remote msg.Remote) error {
	return c.postRDMA(iwarp.OpRead, local, off, n, remote)
}

func (c *iwarpConn) postRDMA(op iwarp.Op, local msg.Region, off, n int, remote msg.Remote) error {
	err := c.q.Post(iwarp.SendWR{Op: op, SG: []iwarp.SGE{local.(*iwarpRegion).r.SGE(off, n)},
		Remote: iwarp.RemoteAddr{STag: remote.Handle, TO: remote.Address}})
	if err != nil {
		return c.failure(err)
	}
	if op == iwarp.OpWrite {
		c.ops.Write(n)
	} else {
		c.ops.Read(n)
	}
	return nil
}

func (c *iwarpConn) Reap(ctx context.Context) error {
	done, err := c.q.SendCQ().Wait(ctx)
	if err != nil {
		return err
	}
	if err := done.Err(); err != nil {
		return c.failure(err)
	}
	return nil
}

// Shutdown ends the sending direction of the stream. TCP still delivers the bytes sent before.
func (c *iwarpConn) Shutdown(context.Context) error { return c.q.CloseWrite() }

func (c *iwarpConn) Close() error {
	var err error
	c.once.Do(func() {
		err = c.q.Close()
		c.release()
	})
	return err
}

// release frees the memory of an ended or never begun stream.
func (c *iwarpConn) release() {
	if c.pace != nil {
		c.pace.close()
	}
	if c.slab != nil {
		c.slab.put()
	}
}
