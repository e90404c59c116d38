//go:build linux && (amd64 || arm64)

package rdma

import (
	stdcontext "context"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// A cmState is the state of an identifier.
type cmState uint8

const (
	cmIdle cmState = iota
	cmBound
	cmAddrResolved
	cmRouteResolved
	cmListening
	cmRequested  // the peer has requested a connection; the program must accept or reject it
	cmConnecting // connect or accept is in progress
	cmConnected
	cmOver // the connection has ended, or could not be made
)

// A cmID is an rdma_cm identifier: an unconnected socket, a listener or a connection.
type cmID struct {
	s   *Service
	num uint32
	ps  uint16

	mu        sync.Mutex
	file      *cmFile               // guarded by mu
	uid       uint64                // guarded by mu
	state     cmState               // guarded by mu
	dev       *device               // guarded by mu; nil while the identifier has no address
	src, dst  netip.AddrPort        // guarded by mu
	sock      int                   // guarded by mu; bound TCP socket, -1 for none
	bound     *binding              // guarded by mu; nil before bind and resolve_addr
	v6only    bool                  // guarded by mu
	reuse     bool                  // guarded by mu; set before the identifier is bound
	listener  net.Listener          // guarded by mu
	request   *mpaRequest           // guarded by mu
	qp        *queuePair            // guarded by mu
	reported  uint32                // guarded by mu; events delivered
	destroyed bool                  // guarded by mu
	backlog   int                   // guarded by mu; how many more requests may arrive
	cancel    stdcontext.CancelFunc // guarded by mu; cancels the dial; nil before connect

	typ     rxe.Type // type of its queue pair
	timeout uint8    // guarded by mu; code of the ACK timeout, 0 unless the program has set it
	roce    *roceID  // guarded by mu; nil unless the device is a RoCE device
}

// Port spaces of rdma_cm.
const (
	psIPoIB = 0x0002
	psTCP   = 0x0106
	psUDP   = 0x0111
	psIB    = 0x013f
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

// delivered counts an event as read by the program, or, if got is false, as not read after all.
func (id *cmID) delivered(e *cmEvent, got bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	n := 1
	if !got {
		n = -1
	}
	id.reported += uint32(n)
	if e.subject != nil {
		id.backlog += n
	}
	if e.join != nil {
		e.join.reported += uint32(n)
	}
}

// tell posts an event of the identifier. The caller must not hold mu.
func (id *cmID) tell(t abi.CMEventType, status unix.Errno, p abi.ConnParam) {
	id.post(abi.CMEvent{Type: t, Status: -int32(status), Param: p})
}

// post adds an event of the identifier to its channel. The caller must not hold mu.
func (id *cmID) post(e abi.CMEvent) {
	id.mu.Lock()
	f := id.file
	e.UID, e.ID = id.uid, id.num
	id.mu.Unlock()
	f.post(&cmEvent{CMEvent: e, of: id})
}

func (k *cmCommand) createID() {
	ps, typ := k.Body.U16(16), k.Body.U8(18)
	if ps != psTCP && ps != psUDP && ps != psIB && ps != psIPoIB || ps == psTCP && typ != 0 && typ != abi.TypeRC {
		k.Return(0, unix.EINVAL)
		return
	}
	id := &cmID{s: k.f.s, ps: ps, file: k.f, uid: k.Body.U64(0), sock: -1, typ: rxe.Type(typ)}
	if typ == 0 {
		id.typ = rxe.RC
		if ps == psUDP || ps == psIPoIB {
			id.typ = rxe.UD
		}
	}
	if id.typ == rxe.UD {
		k.f.s.lacksDatagrams(k.TID)
	}
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

// destroy closes the listener, the connection or the attempt to connect of the identifier, and
// drops the unread events. A second call does nothing.
func (id *cmID) destroy() {
	if !id.s.cm.take(id) {
		return
	}
	id.mu.Lock()
	id.destroyed = true
	f, l, r, q, cancel := id.file, id.listener, id.request, id.qp, id.cancel
	id.listener, id.request = nil, nil
	id.s.ports.remove(id.bound)
	id.bound = nil
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
	id.leaveRoCE()
	if q != nil {
		q.mu.Lock()
		if q.engine != nil {
			q.engine.close()
		}
		q.mu.Unlock()
	}
	for _, e := range f.drop(id) {
		if e.subject != nil { // a connection request that the program never saw
			e.subject.destroy()
		}
	}
}

// newSocket opens a TCP socket bound to a. at is the socket's address, with the port chosen by the
// kernel if a has none.
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

// bind binds the identifier to an address and reserves the port, or a free port for port 0. It
// returns EINVAL if the identifier is already bound or destroyed, and ENODEV if no device serves
// the address.
func (id *cmID) bind(a netip.AddrPort) unix.Errno {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmIdle || id.destroyed {
		return unix.EINVAL
	}
	return id.bindLocked(a)
}

func (id *cmID) bindLocked(a netip.AddrPort) unix.Errno {
	var dev *device
	if !a.Addr().IsUnspecified() {
		if dev = id.s.deviceFor(a.Addr()); dev == nil {
			return unix.ENODEV
		}
	}
	b := &binding{space: id.ps, at: a, ownFamily: a.Addr().Is4() || id.v6only, reuse: id.reuse}
	if a.Port() != 0 { // the kernel allows conflicts that the table finds, because all these sockets have SO_REUSEADDR
		if e := id.s.ports.add(b); e != 0 {
			return e
		}
	}
	fd, at, err := newSocket(a, id.v6only)
	if err != nil {
		id.s.ports.remove(b)
		return errnoOf(err)
	}
	if b.at = at; a.Port() == 0 {
		if e := id.s.ports.add(b); e != 0 {
			unix.Close(fd)
			return e
		}
	}
	id.sock, id.bound, id.src, id.dev, id.state = fd, b, at, dev, cmBound
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
	if id.state != cmIdle && id.state != cmBound || id.state == cmBound && id.src.Addr().Is4() != dst.Addr().Is4() {
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

// resolveLocked determines the local address and the device for a destination. The caller holds mu.
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
	// The identifier reserves a port here, because programs query the port before connecting. If no
	// port is free for a bound socket, the connection may still find a port.
	if id.state == cmIdle {
		if e := id.bindLocked(netip.AddrPortFrom(from, 0)); e != 0 && e != unix.EADDRINUSE {
			return e
		}
	}
	id.src = netip.AddrPortFrom(from, id.src.Port())
	id.dst, id.dev, id.state = dst, dev, cmAddrResolved
	return 0
}

// sourceFor returns the system's source address for packets to dst.
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
	switch {
	case level != levelID || name > ackTimeout:
		k.Return(0, unix.ENOSYS)
		return
	case n == 0 || n > 4:
		k.Return(0, unix.EINVAL)
		return
	}
	if _, err := k.ReadMem(k.Body.U64(0), v[:n]); err != nil {
		k.Return(0, unix.EFAULT)
		return
	}
	switch {
	case name == tos && n == 1:
	case name == ackTimeout && n == 1:
		id.mu.Lock()
		id.timeout = v[0] & 31
		id.mu.Unlock()
	case name == reuse && n == 4:
		k.finish(id.setReuse(v != [4]byte{}))
		return
	case name == afonly && n == 4:
		k.finish(id.setOwnFamily(v != [4]byte{}))
		return
	default:
		k.Return(0, unix.EINVAL)
		return
	}
	k.Return(k.count, 0)
}

// setReuse sets whether the port may be shared. A bound identifier cannot stop sharing, and a
// listener never shares.
func (id *cmID) setReuse(on bool) unix.Errno {
	id.mu.Lock()
	defer id.mu.Unlock()
	switch {
	case id.state == cmIdle:
		id.reuse = on
	case !on || id.state == cmListening:
		return unix.EINVAL
	case id.bound != nil:
		id.s.ports.share(id.bound)
	}
	return 0
}

// setOwnFamily sets whether an IPv6 listener refuses IPv4 connections.
func (id *cmID) setOwnFamily(on bool) unix.Errno {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmIdle && id.state != cmBound {
		return unix.EINVAL
	}
	id.v6only = on
	return 0
}
