package transport

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/registry"
	"viaduct/samehost"
	"viaduct/vi"
)

// viAttributes returns the attributes of the VIs at an address. The defaults are reliable
// reception, both RDMA directions and flow control.
func viAttributes(u *addr.URL, o *Options) vi.Attributes {
	level := u.Choice("reliability")
	def := uint64(o.MTU)
	if def == 0 {
		def = math.MaxUint32
	}
	return vi.Attributes{
		Reliability: map[string]vi.Reliability{
			"unreliable": vi.UnreliableDelivery, "delivery": vi.ReliableDelivery, "reception": vi.ReliableReception,
		}[level],
		FlowControl: u.Bool("flow"), MaxTransferSize: uint32(u.Number("mtu", def)),
		ReadWindow:      int(u.Number("window", 0)),
		EnableRDMAWrite: true, EnableRDMARead: level != "unreliable", // unreliable VIs have no RDMA Read
	}
}

// resolveHost resolves the host of u: first in the registry, if set, and then by the system. A port
// in the registry is used if u has the default port.
func resolveHost(ctx context.Context, u *addr.URL, find Finder) (netip.AddrPort, error) {
	if u.Host == "" {
		return netip.AddrPort{}, shell.Usagef("address %q: the host is missing", u)
	}
	if a, err := netip.ParseAddr(u.Host); err == nil {
		return netip.AddrPortFrom(thisHost(a.Unmap()), u.Port), nil
	}
	if find != nil {
		v, err := find(ctx, registry.VI, u.Host)
		if err == nil {
			return registered(v, u)
		}
		if !errors.Is(err, registry.ErrNotFound) {
			return netip.AddrPort{}, err
		}
	}
	as, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, a := range as { // IPv4 first, as Go dials names on most hosts
		if a.Unmap().Is4() {
			return netip.AddrPortFrom(a.Unmap(), u.Port), nil
		}
	}
	return netip.AddrPortFrom(as[0], u.Port), nil
}

// thisHost replaces the unspecified address by loopback. Users may copy the unspecified address
// from the output of a listener, but the address names no host.
func thisHost(a netip.Addr) netip.Addr {
	switch a {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return a
}

// registered parses a host's value in the VI name service, ADDRESS[:PORT].
func registered(v string, u *addr.URL) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(v); err == nil {
		return netip.AddrPortFrom(a.Unmap(), u.Port), nil
	}
	ap, err := netip.ParseAddrPort(v)
	if err != nil {
		return ap, fmt.Errorf("the registry has %q for host %q, which is not ADDRESS[:PORT]", v, u.Host)
	}
	if u.Port != addr.DefaultPort(u.Scheme) {
		ap = netip.AddrPortFrom(ap.Addr(), u.Port)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// A viConn is a msg.Conn over a connected VI.
type viConn struct {
	nic           *vi.NIC
	v             *vi.VI
	ptag          *vi.Ptag
	log           *slog.Logger
	local, remote net.Addr
	mtu           int
	done          func() // closes the other objects that end with the connection
	ops           *shell.Operations

	slab     *slab // memory of the posted receives
	slabArea *vi.Region
	held     *vi.Descriptor // the receive whose data the caller may read

	out    *vi.Region // holds the message being sent
	outMem []byte

	closed atomic.Bool // this side has called Close
	once   sync.Once
}

// newVI makes an unconnected VI, and posts the receives. On an error, nic stays open.
func newVI(nic *vi.NIC, a vi.Attributes, o *Options) (c *viConn, err error) {
	c = &viConn{nic: nic, log: o.Env.Log, done: func() {}}
	if c.ptag, err = nic.CreatePtag(); err != nil {
		return nil, err
	}
	a.Ptag = c.ptag
	a.MaxTransferSize = min(a.MaxTransferSize, nic.Query().MaxTransferSize)
	if c.v, err = nic.CreateVI(a, nil, nil); err != nil {
		nic.DestroyPtag(c.ptag)
		return nil, err
	}
	size := o.RecvSize
	if size == 0 {
		size = int(a.MaxTransferSize)
	}
	if c.slab, err = slabs.get(size, o.RecvCount); err == nil {
		c.slabArea, err = nic.RegisterMem(c.slab.mem, vi.MemAttributes{Ptag: c.ptag})
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	for i := range o.RecvCount {
		if err := c.postRecv(i); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// postRecv posts receive i of the slab.
func (c *viConn) postRecv(i int) error {
	d := vi.NewRecv(c.slabArea.Segment(i*c.slab.size, c.slab.size))
	d.Context = i
	return c.v.PostRecv(d)
}

// memory allocates and registers n bytes, at least 1, for local use only.
func (c *viConn) memory(n int) (*vi.Region, []byte, error) {
	b := make([]byte, max(n, 1))
	r, err := c.nic.RegisterMem(b, vi.MemAttributes{Ptag: c.ptag})
	return r, b, err
}

// connected records the attributes agreed on by both ends.
func (c *viConn) connected(local, remote net.Addr) {
	_, a, _, _ := c.v.Query()
	c.mtu = int(min(uint64(a.MaxTransferSize), math.MaxInt32))
	c.local, c.remote = local, remote
}

func (c *viConn) LocalAddr() net.Addr  { return c.local }
func (c *viConn) RemoteAddr() net.Addr { return c.remote }
func (c *viConn) Path() samehost.Path  { return c.v.Path() }
func (c *viConn) MaxMessage() int      { return c.mtu }

// Depth returns 16 for both. Beyond 16, the read window and the socket delay the requests.
func (c *viConn) Depth() (writes, reads int) { return 16, 16 }

// brokeHint is the hint for a connection ended without a disconnect by the peer.
const brokeHint = "the other side may have died: look at its log, and run this again"

// failure translates err, the error of an operation. The result is net.ErrClosed if this end has
// closed the connection. The result matches io.EOF if the peer has disconnected, and msg.ErrBroken
// if the connection failed. The result is a msg.RemoteAccessError if the peer refused the access.
func (c *viConn) failure(err error) error {
	var st *vi.StatusError
	switch {
	case errors.As(err, &st) && st.Status&vi.StatusErrorMask == vi.StatusFlushed, errors.Is(err, vi.ErrQueueEmpty):
		if c.closed.Load() {
			return net.ErrClosed
		}
		if !c.v.PeerDisconnected() {
			return shell.Hint(msg.ErrBroken, brokeHint)
		}
		return fmt.Errorf("the connection ended: %w", io.EOF)
	case st != nil && st.Status&vi.StatusErrorMask == vi.StatusRDMAProtection:
		return &msg.RemoteAccessError{Cause: err}
	case st != nil && st.Status&vi.StatusTransportError != 0:
		return shell.Hint(fmt.Errorf("%w: %w", msg.ErrBroken, err), brokeHint)
	}
	return err
}

func (c *viConn) Send(ctx context.Context, m msg.Message) error {
	n := len(m.Data)
	if n > c.mtu {
		return fmt.Errorf("%w: %d bytes, at most %d", msg.ErrTooLong, n, c.mtu)
	}
	if len(c.outMem) < n || c.out == nil {
		if c.out != nil {
			c.nic.DeregisterMem(c.out)
			c.out = nil
		}
		var err error
		if c.out, c.outMem, err = c.memory(max(n, 4096)); err != nil {
			return err
		}
	}
	copy(c.outMem, m.Data)
	d := vi.NewSend(c.out.Segment(0, n))
	if m.HasImm {
		d.WithImmediate(m.Imm)
	}
	if err := c.v.PostSend(d); err != nil {
		return err
	}
	c.ops.Send(n)
	return c.Reap(ctx)
}

func (c *viConn) Recv(ctx context.Context) (msg.Message, error) {
	if c.held != nil {
		i := c.held.Context.(int)
		c.held = nil
		c.slab.repost(i)
		if err := c.postRecv(i); err != nil {
			return msg.Message{}, err
		}
	}
	d, err := c.v.RecvWait(ctx)
	if err != nil {
		return msg.Message{}, c.failure(err)
	}
	c.held = d
	i := d.Context.(int)
	c.slab.filled(i, int(d.Length))
	c.ops.Receive(int(d.Length))
	m := msg.Message{Data: c.slab.at(i)[:d.Length]}
	if d.Status()&vi.StatusImmediate != 0 {
		m.Imm, m.HasImm = d.ImmediateData, true
	}
	return m, nil
}

// A viRegion is memory registered for a connection.
type viRegion struct {
	nic *vi.NIC
	r   *vi.Region
}

func (r *viRegion) Remote() msg.Remote {
	return msg.Remote{Address: r.r.Address(), Handle: uint32(r.r.Handle())}
}

func (r *viRegion) Close() error { return r.nic.DeregisterMem(r.r) }

func (c *viConn) Register(b []byte, a msg.Access) (msg.Region, error) {
	r, err := c.nic.RegisterMem(b, vi.MemAttributes{
		Ptag: c.ptag, EnableRDMARead: a&msg.RemoteRead != 0, EnableRDMAWrite: a&msg.RemoteWrite != 0,
		Guarded: a&msg.Guarded != 0,
	})
	if err != nil {
		return nil, err
	}
	return &viRegion{c.nic, r}, nil
}

func (c *viConn) PostWrite(local msg.Region, off, n int, remote msg.Remote) error {
	err := c.v.PostSend(vi.NewRDMAWrite(viRemote(remote), local.(*viRegion).r.Segment(off, n)))
	if err == nil {
		c.ops.Write(n)
	}
	return err
}

func (c *viConn) PostRead(local msg.Region, off, n int, remote msg.Remote) error {
	err := c.v.PostSend(vi.NewRDMARead(viRemote(remote), local.(*viRegion).r.Segment(off, n)))
	if err == nil {
		c.ops.Read(n)
	}
	return err
}

func viRemote(r msg.Remote) vi.RemoteSegment {
	return vi.RemoteSegment{Address: r.Address, Handle: vi.MemHandle(r.Handle)}
}

func (c *viConn) Reap(ctx context.Context) error {
	if _, err := c.v.SendWait(ctx); err != nil {
		return c.failure(err)
	}
	return nil
}

// Shutdown does nothing. A reliable send is complete when the peer has received the message, and
// Disconnect still delivers other messages.
func (c *viConn) Shutdown(context.Context) error { return nil }

// EmptyVI reaps the descriptors flushed by a disconnect of v, because Destroy requires empty
// queues. The NIC may be closed at the same time.
func EmptyVI(v *vi.VI) {
	for _, done := range []func() (*vi.Descriptor, error){v.SendDone, v.RecvDone} {
		for d, _ := done(); d != nil; d, _ = done() {
		}
	}
}

func (c *viConn) Close() error {
	c.once.Do(func() {
		c.closed.Store(true)
		c.v.Disconnect()
		EmptyVI(c.v)
		for _, r := range []*vi.Region{c.slabArea, c.out} {
			if r != nil {
				c.nic.DeregisterMem(r)
			}
		}
		if c.slab != nil {
			c.slab.put()
		}
		if err := c.v.Destroy(); err != nil {
			c.log.Debug("vi not destroyed", "err", err)
		}
		c.nic.DestroyPtag(c.ptag) // the NIC refuses while the caller still has a region
		c.done()
	})
	return nil
}

// openNIC opens a NIC and logs the NIC's asynchronous errors, an expected end at level debug.
func openNIC(p vi.Provider, name string, o *Options) (*vi.NIC, error) {
	nic, err := vi.Open(p, name, &vi.Config{Logger: o.Env.Log})
	if err != nil {
		return nil, err
	}
	nic.ErrorCallback(func(d vi.ErrorDescriptor) {
		level := slog.LevelWarn
		if d.Code == vi.ErrorConnLost {
			level = slog.LevelDebug
		}
		o.Env.Log.Log(context.Background(), level, "asynchronous error", "err", d.String())
	})
	return nic, nil
}

// calling returns a new discriminator for a client.
func calling() []byte { return []byte("c-" + rand.Text()[:12]) }

// dialVI connects a new VI of nic to the discriminator in u at remoteHost. Closing the connection,
// or an error, also closes nic.
func dialVI(ctx context.Context, nic *vi.NIC, u *addr.URL, o *Options, remoteHost []byte, remote net.Addr) (msg.Conn, error) {
	a := viAttributes(u, o)
	c, err := newVI(nic, a, o)
	if err != nil {
		nic.Close()
		return nil, err
	}
	c.done = func() { nic.Close() }
	here := vi.Address{Discriminator: calling()} // the system chooses the host part
	there := vi.Address{Host: remoteHost, Discriminator: u.Disc}
	if _, err := c.v.ConnectRequest(ctx, here, there); err != nil {
		c.Close()
		return nil, connectFailure(u, err)
	}
	c.connected(viAddr(here.String()), remote)
	watch(c, u, o, dialled)
	return c, nil
}

// connectFailure adds the address to err, and a hint with the usual reason.
func connectFailure(u *addr.URL, err error) error {
	wrapped := fmt.Errorf("connect to %s: %w", u, err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		// VI reports No Match for a closed port, too.
		return fmt.Errorf("connect to %s: %w", u, refusal(err))
	case errors.Is(err, vi.ErrNoMatch):
		return shell.Hint(wrapped, "check the discriminator, and that the server is listening with it")
	case errors.Is(err, vi.ErrReject), errors.Is(err, vi.ErrInvalidReliability), errors.Is(err, vi.ErrInvalidMTU):
		return shell.Hint(wrapped, "give the address the same reliability and flow parameters as the server's")
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.HostnameError)):
		return wrapped
	case errors.Is(err, vi.ErrNotReachable):
		return shell.Hint(wrapped, "check that the server is running, that host and port are right, and that both sides have --tls or neither")
	case errors.Is(err, vi.ErrTimeout):
		return shell.Hint(wrapped, "the other side may be stopped, or speak another protocol at this port, such as TLS (--tls)")
	}
	return wrapped
}

// refusal returns the socket's error in err, without the VI status around it. Without a socket
// error, refusal returns ECONNREFUSED.
func refusal(err error) error {
	if oe, ok := errors.AsType[*net.OpError](err); ok {
		return oe
	}
	return syscall.ECONNREFUSED
}

// A viAddr is the text of an address other than a TCP address.
type viAddr string

func (viAddr) Network() string  { return "vi" }
func (a viAddr) String() string { return string(a) }

// viWaits is the number of goroutines of a listener that wait for requests, and therefore the
// number of requests that may arrive at the same moment. Further requests wait up to vitcpGrace for
// a goroutine.
const viWaits = 16

// A viListener accepts connections for a discriminator, and owns the NIC.
type viListener struct {
	nic   *vi.NIC
	u     *addr.URL
	o     *Options
	a     vi.Attributes
	at    net.Addr
	local vi.Address
	ready chan *viConn
	fail  chan error

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func listenVI(nic *vi.NIC, u *addr.URL, o *Options, at net.Addr) (msg.Listener, error) {
	a := viAttributes(u, o)
	l := &viListener{nic: nic, u: u, o: o, a: a, at: at, ready: make(chan *viConn), fail: make(chan error, 1),
		local: vi.Address{Host: nic.Query().LocalAddress, Discriminator: u.Disc}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for range viWaits {
		l.wg.Go(l.wait)
	}
	return l, nil
}

// wait accepts requests one after the other and passes the connections to Accept, until the
// listener is closed or fails.
func (l *viListener) wait() {
	for {
		r, err := l.nic.ConnectWait(l.ctx, l.local)
		if l.ctx.Err() != nil {
			return
		}
		if err != nil {
			select {
			case l.fail <- err:
			default:
			}
			return
		}
		c, err := l.accept(r)
		if err != nil {
			l.o.Env.Log.Warn("connection not accepted", "remote", r.Remote().String(), "err", err)
			continue
		}
		select {
		case l.ready <- c:
		case <-l.ctx.Done():
			c.Close()
			return
		}
	}
}

func (l *viListener) accept(r *vi.ConnRequest) (*viConn, error) {
	c, err := newVI(l.nic, l.a, l.o)
	if err != nil {
		r.Reject()
		return nil, err
	}
	if err := r.Accept(l.ctx, c.v); err != nil {
		r.Reject() // has no effect if r was answered
		c.Close()
		return nil, err
	}
	c.connected(viAddr(l.local.String()), viAddr(r.Remote().String()))
	watch(c, l.u, l.o, accepted)
	return c, nil
}

func (l *viListener) Accept(ctx context.Context) (msg.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case err := <-l.fail:
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *viListener) Addr() net.Addr { return l.at }

// Close ends the listener. Close closes the NIC, and thereby all open accepted connections.
func (l *viListener) Close() error {
	l.cancel()
	l.wg.Wait()
	return l.nic.Close()
}

// VIAttributes returns the VI attributes for an address, with mtu unless the address sets mtu.
// Measurements need the attributes, because measurements use VIs directly.
func VIAttributes(u *addr.URL, mtu uint32) vi.Attributes {
	return viAttributes(u, &Options{MTU: mtu})
}

// VIAddress returns the VI address of a URL.
func VIAddress(ctx context.Context, u *addr.URL, o *Options) (vi.Address, error) {
	ap, err := resolveHost(ctx, u, o.Find)
	if err != nil {
		return vi.Address{}, err
	}
	host := vi.IPAddress(ap, "").Host
	if u.Scheme == "fcvi" {
		host = fcviHost(u, ap)
	}
	return vi.Address{Host: host, Discriminator: u.Disc}, nil
}

// OpenVINIC opens a NIC for a URL. at is the address where the NIC listens, if listens is set.
func OpenVINIC(u *addr.URL, o *Options, listens bool) (nic *vi.NIC, at net.Addr, err error) {
	switch {
	case u.Scheme == "fcvi":
		nic, err = fcviNIC(u, o, listens, !listens)
	case listens:
		nic, err = vitcpNIC(u, o, u.HostPort(), "", false)
	default:
		nic, err = vitcpNIC(u, o, "", u.Host, true)
	}
	if err != nil {
		return nil, nil, err
	}
	return nic, nicAddr(nic, u), nil
}

// nicAddr returns the address where a NIC listens.
func nicAddr(nic *vi.NIC, u *addr.URL) net.Addr {
	ap, _ := (vi.Address{Host: nic.Query().LocalAddress}).AddrPort()
	if ap.Port() == 0 {
		ap = netip.AddrPortFrom(ap.Addr(), u.Port)
	}
	return net.TCPAddrFromAddrPort(ap)
}

// peerVI connects a VI at local with a VI at remote. The other side calls peerVI too.
func peerVI(ctx context.Context, local, remote *addr.URL, o *Options) (msg.Conn, error) {
	there, err := VIAddress(ctx, remote, o)
	if err != nil {
		return nil, err
	}
	a := viAttributes(remote, o)
	nic, at, err := OpenVINIC(local, o, true)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", local, err)
	}
	c, err := newVI(nic, a, o)
	if err != nil {
		nic.Close()
		return nil, err
	}
	c.done = func() { nic.Close() }
	here := vi.Address{Host: nic.Query().LocalAddress, Discriminator: local.Disc}
	defer o.Env.Listening(local.WithPort(at))()
	var timeout time.Duration
	if end, ok := ctx.Deadline(); ok {
		timeout = time.Until(end)
	}
	if err = c.v.ConnectPeerRequest(here, there, timeout); err == nil {
		_, err = c.v.ConnectPeerWait(ctx)
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, connectFailure(remote, err)
	}
	c.connected(viAddr(here.String()), viAddr(there.String()))
	watch(c, remote, o, peered)
	return c, nil
}
