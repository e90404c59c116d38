//go:build linux && (amd64 || arm64)

package rdma

import (
	stdcontext "context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/wire/mpa"
	"viaduct/iwarp"
)

// A cmState is where an identifier is in its life.
type cmState uint8

const (
	cmIdle cmState = iota
	cmBound
	cmAddrResolved
	cmRouteResolved
	cmListening
	cmRequested  // the peer asks; the program is to accept or reject
	cmConnecting // connect or accept is under way
	cmConnected
	cmOver // the connection has ended, or could not be made
)

// A cmID is an rdma_cm identifier: a socket in the making, a listener or a connection.
type cmID struct {
	s   *Service
	num uint32
	ps  uint16

	mu        sync.Mutex
	file      *cmFile               // guarded by mu
	uid       uint64                // guarded by mu
	state     cmState               // guarded by mu
	dev       *device               // guarded by mu; nil while bound to no address
	src, dst  netip.AddrPort        // guarded by mu
	sock      int                   // guarded by mu; bound TCP socket, -1 for none
	v6only    bool                  // guarded by mu
	listener  net.Listener          // guarded by mu
	request   *mpaRequest           // guarded by mu
	qp        *queuePair            // guarded by mu
	reported  uint32                // guarded by mu; events delivered
	destroyed bool                  // guarded by mu
	backlog   int                   // guarded by mu; requests that may still come
	cancel    stdcontext.CancelFunc // guarded by mu; of the dial
}

// Port spaces.
const (
	psTCP = 0x0106
	psUDP = 0x0111
	psIB  = 0x013f
)

func (id *cmID) channel() *cmFile {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.file
}

func (id *cmID) isDestroyed() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.destroyed
}

// delivered counts an event that the program has got.
func (id *cmID) delivered(e *cmEvent) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.reported++
	if e.subject != nil {
		id.backlog++
	}
}

// tell posts an event of the identifier. It is not called with mu held.
func (id *cmID) tell(t abi.CMEventType, status unix.Errno, p abi.ConnParam) {
	id.mu.Lock()
	f, uid := id.file, id.uid
	id.mu.Unlock()
	f.post(&cmEvent{CMEvent: abi.CMEvent{UID: uid, ID: id.num, Type: t, Status: -int32(status), Param: p}, of: id})
}

func (k *cmCommand) createID() {
	ps, typ := k.Body.U16(16), k.Body.U8(18)
	if ps != psTCP && ps != psUDP && ps != psIB || ps == psTCP && typ != 0 && typ != abi.TypeRC {
		k.Return(0, unix.EINVAL)
		return
	}
	id := &cmID{s: k.f.s, ps: ps, file: k.f, uid: k.Body.U64(0), sock: -1}
	k.f.s.cm.add(id)
	if !k.answer(k.Body.U64(8), abi.Words(id.num)) {
		id.destroy()
	}
}

func (k *cmCommand) destroyID() {
	id := k.idAt(8)
	if id == nil {
		return
	}
	id.destroy()
	id.mu.Lock()
	n := id.reported
	id.mu.Unlock()
	k.answer(k.Body.U64(0), abi.Words(n))
}

// destroy ends whatever the identifier is.
func (id *cmID) destroy() {
	if !id.s.cm.take(id) {
		return
	}
	id.mu.Lock()
	id.destroyed = true
	f, l, r, q, cancel := id.file, id.listener, id.request, id.qp, id.cancel
	id.listener, id.request = nil, nil
	if id.sock >= 0 {
		unix.Close(id.sock)
		id.sock = -1
	}
	id.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if l != nil {
		l.Close()
	}
	if r != nil {
		id.s.wg.Go(r.refuse)
	}
	if q != nil {
		q.mu.Lock()
		if q.engine != nil {
			q.engine.close()
		}
		q.mu.Unlock()
	}
	for _, e := range f.drop(id) {
		if e.subject != nil { // a request that the program never saw
			e.subject.destroy()
		}
	}
}

// newSocket makes the TCP socket of an identifier and binds it.
func newSocket(a netip.AddrPort, v6only bool) (fd int, at netip.AddrPort, err error) {
	family := unix.AF_INET6
	if a.Addr().Is4() {
		family = unix.AF_INET
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP); err != nil {
		return -1, at, err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if family == unix.AF_INET6 {
		only := 0
		if v6only {
			only = 1
		}
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
	}
	if err = unix.Bind(fd, sockaddr(a)); err == nil {
		var sa unix.Sockaddr
		if sa, err = unix.Getsockname(fd); err == nil {
			return fd, addrPort(sa), nil
		}
	}
	unix.Close(fd)
	return -1, at, err
}

func (k *cmCommand) bindIP() {
	id := k.idAt(36)
	if id == nil {
		return
	}
	a, ok := abi.ParseAddr(k.Body[min(8, len(k.Body)):])
	if !ok {
		k.Return(0, unix.EAFNOSUPPORT)
		return
	}
	k.finish(id.bind(a))
}

// bind binds the identifier to an address: its port is reserved from now on.
func (id *cmID) bind(a netip.AddrPort) unix.Errno {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmIdle {
		return unix.EINVAL
	}
	var dev *device
	if !a.Addr().IsUnspecified() {
		if dev = id.s.deviceFor(a.Addr()); dev == nil {
			return unix.ENODEV
		}
	}
	fd, at, err := newSocket(a, id.v6only)
	if err != nil {
		return errnoOf(err)
	}
	id.sock, id.src, id.dev, id.state = fd, at, dev, cmBound
	return 0
}

func (k *cmCommand) resolveIP() {
	id := k.idAt(56)
	if id == nil {
		return
	}
	src, hasSrc := abi.ParseAddr(k.Body)
	dst, ok := abi.ParseAddr(k.Body[min(28, len(k.Body)):])
	if !ok {
		k.Return(0, unix.EAFNOSUPPORT)
		return
	}
	if hasSrc && !src.Addr().IsUnspecified() || hasSrc && src.Port() != 0 {
		id.mu.Lock()
		idle := id.state == cmIdle
		id.mu.Unlock()
		if idle {
			if e := id.bind(src); e != 0 {
				k.Return(0, e)
				return
			}
		}
	}
	id.mu.Lock()
	if id.state != cmIdle && id.state != cmBound {
		id.mu.Unlock()
		k.Return(0, unix.EINVAL)
		return
	}
	err := id.resolveLocked(dst)
	id.mu.Unlock()
	k.Return(k.count, 0)
	if err != 0 {
		id.tell(abi.EvAddrError, err, abi.ConnParam{})
		return
	}
	id.tell(abi.EvAddrResolved, 0, abi.ConnParam{})
}

// resolveLocked finds the local address and the device by which an address is reached.
func (id *cmID) resolveLocked(dst netip.AddrPort) unix.Errno {
	if id.ps != psTCP {
		return unix.ENODEV
	}
	from := id.src.Addr()
	if !from.IsValid() || from.IsUnspecified() {
		var err error
		if from, err = sourceFor(dst); err != nil {
			return errnoOf(err)
		}
	}
	dev := id.s.deviceFor(from)
	if dev == nil {
		return unix.ENODEV
	}
	id.src = netip.AddrPortFrom(from, id.src.Port())
	id.dst, id.dev, id.state = dst, dev, cmAddrResolved
	return 0
}

// sourceFor asks the system which local address it would use.
func sourceFor(dst netip.AddrPort) (netip.Addr, error) {
	family := unix.AF_INET6
	if dst.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if dst.Port() == 0 {
		dst = netip.AddrPortFrom(dst.Addr(), 1)
	}
	if err := unix.Connect(fd, sockaddr(dst)); err != nil {
		return netip.Addr{}, err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrPort(sa).Addr(), nil
}

func (k *cmCommand) resolveRoute() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	id.mu.Lock()
	ok := id.state == cmAddrResolved
	if ok {
		id.state = cmRouteResolved
	}
	id.mu.Unlock()
	if !ok {
		k.Return(0, unix.EINVAL)
		return
	}
	k.Return(k.count, 0)
	id.tell(abi.EvRouteResolved, 0, abi.ConnParam{})
}

func (k *cmCommand) queryRoute() {
	id := k.idAt(8)
	if id == nil {
		return
	}
	b := make(abi.Body, abi.QueryRouteLen)
	id.mu.Lock()
	if id.dev != nil {
		putGUID(b, id.dev.found.GUID)
		b.Put8(196, 1)
		b.Put32(200, id.dev.found.Index)
	}
	abi.PutAddr(b[136:164], id.src)
	abi.PutAddr(b[164:192], id.dst)
	id.mu.Unlock()
	if k.Out < 200 {
		k.Return(0, unix.ENOSPC)
		return
	}
	k.answer(k.Body.U64(0), b[:min(k.Out, len(b))])
}

func (k *cmCommand) initQPAttr() {
	id := k.idAt(8)
	if id == nil {
		return
	}
	b, ok := abi.QPAttr(abi.State(k.Body.U32(12)))
	id.mu.Lock()
	bound := id.dev != nil
	id.mu.Unlock()
	if !ok || !bound {
		k.Return(0, unix.EINVAL)
		return
	}
	k.answer(k.Body.U64(0), b)
}

func (k *cmCommand) setOption() {
	const levelID, tos, reuse, afonly, ackTimeout = 0, 0, 1, 2, 3
	id := k.idAt(8)
	if id == nil {
		return
	}
	level, name, n := k.Body.U32(12), k.Body.U32(16), k.Body.U32(20)
	var v [4]byte
	if level != levelID || n == 0 || n > 4 {
		k.Return(0, unix.EINVAL)
		return
	}
	if _, err := k.ReadMem(k.Body.U64(0), v[:n]); err != nil {
		k.Return(0, unix.EFAULT)
		return
	}
	switch {
	case name == tos && n == 1, name == reuse && n == 4, name == ackTimeout && n == 1:
	case name == afonly && n == 4:
		id.mu.Lock()
		id.v6only = v != [4]byte{}
		id.mu.Unlock()
	default:
		k.Return(0, unix.EINVAL)
		return
	}
	k.Return(k.count, 0)
}

func (k *cmCommand) connect() {
	p := abi.ParseConnParam(k.Body)
	id := k.idAt(272)
	if id == nil {
		return
	}
	p.Private = append([]byte(nil), p.Private...)
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmRouteResolved || !p.Valid {
		k.Return(0, unix.EINVAL)
		return
	}
	q := id.dev.qp(p.QP)
	if q == nil {
		k.Return(0, unix.EINVAL)
		return
	}
	cfg, err := q.config()
	if err != nil {
		k.Return(0, unix.ENOMEM)
		return
	}
	cfg.Private = p.Private
	cfg.IRD, cfg.ORD = depths(p)
	cfg.ReplyTimeout = connectTimeout
	k.Return(k.count, 0)
	id.state, id.qp = cmConnecting, q
	ctx, cancel := stdcontext.WithCancel(stdcontext.Background())
	id.cancel = cancel
	sock := id.sock
	id.sock = -1
	t := id.s.dials.next()
	id.s.wg.Go(func() {
		defer cancel()
		id.dial(ctx, q, cfg, sock, t)
	})
}

// connectTimeout bounds the peer's decision.
const connectTimeout = 60 * time.Second

// depths are the numbers of Reads as a configuration has them: negative is none.
func depths(p abi.ConnParam) (ird, ord int) {
	ird, ord = int(p.IRD), int(p.ORD)
	if ird == 0 {
		ird = -1
	}
	if ord == 0 {
		ord = -1
	}
	return min(ird, maxReads), min(ord, maxReads)
}

// dial makes the connection of an identifier.
func (id *cmID) dial(ctx stdcontext.Context, q *queuePair, cfg *iwarp.Config, sock int, t turn) {
	id.mu.Lock()
	src, dst := id.src, id.dst
	id.mu.Unlock()
	t.wait()
	nc, err := dialTCP(ctx, sock, src, dst)
	t.end()
	if err == nil {
		id.mu.Lock()
		id.src = nc.LocalAddr().(*net.TCPAddr).AddrPort()
		id.mu.Unlock()
		if w := id.s.opt.WrapConn; w != nil {
			nc = w(nc, true)
		}
		var iw *iwarp.QueuePair
		if iw, err = iwarp.Client(ctx, nc, cfg); err == nil {
			if id.connected(q, iw) {
				return
			}
			err = unix.ECONNRESET
		}
	}
	id.fail(err)
}

// dialTCP connects, by the socket that was bound if there is one.
func dialTCP(ctx stdcontext.Context, sock int, src, dst netip.AddrPort) (net.Conn, error) {
	if sock >= 0 {
		unix.Close(sock) // the dialer binds one of its own at once
	}
	var d net.Dialer
	d.LocalAddr = net.TCPAddrFromAddrPort(src)
	d.Timeout = connectTimeout
	refused := time.Now().Add(refusedFor)
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}
	for {
		nc, err := d.DialContext(ctx, "tcp", dst.String())
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(refused) {
			return nc, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// refusedFor is for how long a refused connection is tried again. Programs that give up
// a listener and make it anew between two connections, as perftest's do, count on the other
// side being slower than that.
const refusedFor = 300 * time.Millisecond

// fail tells why the connection could not be made.
func (id *cmID) fail(err error) {
	id.mu.Lock()
	id.state = cmOver
	id.mu.Unlock()
	t, status, p := abi.EvConnectError, unix.ECONNABORTED, abi.ConnParam{}
	var rej *iwarp.RejectedError
	switch {
	case errors.As(err, &rej):
		t, status = abi.EvRejected, unix.ECONNREFUSED
		p.Private = rej.Private[:min(len(rej.Private), abi.MaxPrivate)]
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET):
		t, status = abi.EvRejected, unix.ECONNREFUSED
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ETIMEDOUT), errors.Is(err, iwarp.ErrTimeout):
		t, status = abi.EvUnreachable, unix.ETIMEDOUT
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		t, status = abi.EvUnreachable, unix.EHOSTUNREACH
	}
	id.s.explain("connect %v: %v", id.dst, err)
	id.tell(t, status, p)
}

// connected begins the life of a connection. It reports false if the queue pair
// can't have one any more; the stream is closed then.
func (id *cmID) connected(q *queuePair, iw *iwarp.QueuePair) bool {
	ready := make(chan struct{})
	gone := func() {
		<-ready
		id.ended()
	}
	if err := q.start(iw, gone); err != nil {
		iw.Abort()
		iw.Close()
		return false
	}
	defer close(ready)
	id.mu.Lock()
	id.state = cmConnected
	over := id.destroyed
	src, dst := id.src, id.dst
	id.mu.Unlock()
	if over {
		q.mu.Lock()
		if q.engine != nil {
			q.engine.close()
		}
		q.mu.Unlock()
		return true
	}
	private := iw.PeerPrivate()
	id.s.explain("%v -> %v: connected over iWARP, %d and %d reads", src, dst, iw.IRD(), iw.ORD())
	id.tell(abi.EvEstablished, 0, abi.ConnParam{Private: private[:min(len(private), abi.MaxPrivate)],
		IRD: uint8(min(iw.IRD(), 255)), ORD: uint8(min(iw.ORD(), 255))})
	return true
}

// ended tells the end of the connection.
func (id *cmID) ended() {
	id.mu.Lock()
	id.state = cmOver
	id.mu.Unlock()
	id.tell(abi.EvDisconnected, 0, abi.ConnParam{})
}

func (k *cmCommand) disconnect() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	id.mu.Lock()
	state, q := id.state, id.qp
	id.mu.Unlock()
	if state != cmConnected && state != cmOver {
		k.Return(0, unix.EINVAL)
		return
	}
	k.Return(k.count, 0)
	if q != nil {
		q.mu.Lock()
		if q.engine != nil {
			q.engine.close()
		}
		q.mu.Unlock()
	}
}

func (k *cmCommand) listen() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	k.finish(id.listen(int(int32(k.Body.U32(4)))))
}

// defaultBacklog is what a program gets that does not say.
const defaultBacklog = 128

func (id *cmID) listen(backlog int) unix.Errno {
	id.mu.Lock()
	idle := id.state == cmIdle
	id.mu.Unlock()
	if idle {
		if e := id.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); e != 0 {
			return e
		}
	}
	if backlog <= 0 || backlog > 1024 {
		backlog = defaultBacklog
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmBound || id.ps != psTCP {
		return unix.EINVAL
	}
	if err := unix.Listen(id.sock, backlog); err != nil {
		return errnoOf(err)
	}
	f := os.NewFile(uintptr(id.sock), "listener")
	id.sock = -1
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		id.state = cmIdle
		return errnoOf(err)
	}
	id.listener, id.state, id.backlog = l, cmListening, backlog
	id.s.wg.Go(func() { id.serve(l) })
	return 0
}

// serve takes the connections of a listener.
func (id *cmID) serve(l net.Listener) {
	var arrivals turns
	for {
		nc, err := l.Accept()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // no descriptor left, for instance
			continue
		}
		id.mu.Lock()
		room := id.backlog > 0 && !id.destroyed
		if room {
			id.backlog--
		}
		id.mu.Unlock()
		if !room {
			nc.Close()
			continue
		}
		t := arrivals.next()
		id.s.wg.Go(func() {
			defer t.end()
			id.arrival(nc, t)
		})
	}
}

// arrival reads the request of a connection and tells the program.
func (id *cmID) arrival(nc net.Conn, t turn) {
	giveUp := func() {
		nc.Close()
		id.mu.Lock()
		id.backlog++
		id.mu.Unlock()
	}
	local := nc.LocalAddr().(*net.TCPAddr).AddrPort()
	remote := nc.RemoteAddr().(*net.TCPAddr).AddrPort()
	dev := id.s.deviceFor(local.Addr())
	if dev == nil {
		giveUp()
		return
	}
	if w := id.s.opt.WrapConn; w != nil {
		nc = w(nc, false)
	}
	r, err := readMPA(nc, id.s.done)
	if err != nil {
		giveUp()
		return
	}
	t.wait()
	n := &cmID{s: id.s, ps: psTCP, sock: -1, state: cmRequested, dev: dev, request: r, src: unmap(local), dst: unmap(remote)}
	id.mu.Lock()
	if id.destroyed {
		id.mu.Unlock()
		r.refuse()
		return
	}
	n.file = id.file
	f, uid := id.file, id.uid
	id.mu.Unlock()
	id.s.cm.add(n)
	if !f.post(&cmEvent{CMEvent: abi.CMEvent{UID: uid, ID: n.num, Type: abi.EvConnectRequest, Param: r.param()}, of: id, subject: n}) {
		n.destroy()
	}
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (k *cmCommand) accept() {
	p := abi.ParseConnParam(k.Body[min(8, len(k.Body)):])
	id := k.idAt(280)
	if id == nil {
		return
	}
	p.Private = append([]byte(nil), p.Private...)
	id.mu.Lock()
	defer id.mu.Unlock()
	r := id.request
	if id.state != cmRequested || r == nil || !p.Valid {
		k.Return(0, unix.EINVAL)
		return
	}
	q := id.dev.qp(p.QP)
	if q == nil {
		k.Return(0, unix.EINVAL)
		return
	}
	cfg, err := q.config()
	if err != nil {
		k.Return(0, unix.ENOMEM)
		return
	}
	cfg.IRD, cfg.ORD = depths(p)
	cfg.MaxIRD = max(cfg.IRD, 1)
	id.uid, id.qp, id.state, id.request = k.Body.U64(0), q, cmConnecting, nil
	k.f.repeats.begin(k.Call, k.raw)
	id.s.wg.Go(func() {
		iw, err := r.accept(cfg, p.Private)
		if err == nil {
			// The answer is first: the program's thread may be the one that
			// takes the event.
			k.Return(k.count, 0)
			if !id.connected(q, iw) {
				id.ended()
			}
			return
		}
		id.mu.Lock()
		id.state = cmOver
		id.mu.Unlock()
		k.Return(0, unix.ECONNRESET)
	})
}

func (k *cmCommand) reject() {
	id := k.idAt(0)
	if id == nil {
		return
	}
	private := append([]byte(nil), k.Body.Bytes(8, int(k.Body.U8(4)))...)
	id.mu.Lock()
	r := id.request
	id.request = nil
	ok := id.state == cmRequested && r != nil
	if ok {
		id.state = cmOver
	}
	id.mu.Unlock()
	if !ok {
		k.Return(0, unix.EINVAL)
		return
	}
	id.s.wg.Go(func() { r.reject(private) })
	k.Return(k.count, 0)
}

// An mpaRequest is a connection whose Request was read and not answered.
type mpaRequest struct {
	nc   net.Conn
	read []byte
	p    mpa.Params
}

// readMPA reads a Request, before it is known which queue pair it is for.
func readMPA(nc net.Conn, stop <-chan struct{}) (*mpaRequest, error) {
	m, err := mpa.NewResponder(mpa.ResponderConfig{CRC: true, IRD: maxReads, ORD: maxReads})
	if err != nil {
		return nil, err
	}
	nc.SetReadDeadline(time.Now().Add(iwarp.DefaultRequestTimeout))
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-stop:
			nc.Close()
		case <-over:
		}
	}()
	buf := make([]byte, 0, 1024)
	for {
		switch _, act := m.Receive(buf); act {
		case mpa.Ask:
			nc.SetReadDeadline(time.Time{})
			return &mpaRequest{nc, buf, m.Params()}, nil
		case mpa.Wait:
		default:
			return nil, m.Err()
		}
		if len(buf) == cap(buf) {
			return nil, errors.New("rdma: a Request without end")
		}
		n, err := nc.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil && n == 0 {
			return nil, err
		}
	}
}

// param is what the request of connection tells the program: the depths are the
// peer's, seen from here.
func (r *mpaRequest) param() abi.ConnParam {
	return abi.ConnParam{Private: r.p.Private[:min(len(r.p.Private), abi.MaxPrivate)],
		IRD: uint8(min(r.p.PeerORD, 255)), ORD: uint8(min(r.p.PeerIRD, 255))}
}

func (r *mpaRequest) start(cfg *iwarp.Config) (*iwarp.Request, error) {
	ctx, cancel := stdcontext.WithTimeout(stdcontext.Background(), 10*time.Second)
	defer cancel()
	return iwarp.ReadRequestWith(ctx, r.nc, r.read, cfg)
}

func (r *mpaRequest) accept(cfg *iwarp.Config, private []byte) (*iwarp.QueuePair, error) {
	req, err := r.start(cfg)
	if err != nil {
		return nil, err
	}
	return req.Accept(private)
}

func (r *mpaRequest) reject(private []byte) {
	if req, err := r.start(nil); err == nil {
		req.Reject(private)
	}
}

func (r *mpaRequest) refuse() { r.reject(nil) }
