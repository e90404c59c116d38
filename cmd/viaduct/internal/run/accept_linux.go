//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
	"viaduct/internal/sock"
	"viaduct/internal/sockdiag"
	"viaduct/internal/status"
)

// How an accepted connection reaches the program. For each connection of the transport (an
// arrival), the supervisor opens a connection over loopback to the program's own listener.
// Therefore poll, epoll, select, and children with the same listener work unchanged. The supervisor
// performs the accept call: the supervisor takes the loopback connection, writes the peer's real
// address into the program's memory, and installs the socket in the program. The relay starts only
// then. A process may also accept unseen by the supervisor, for example if the process's calls
// cannot be served. The process would then see the supervisor as the peer. Therefore the process
// receives no bytes, and the arrival is closed.

// An arrival is a connection of the transport not yet accepted by the program.
type arrival struct {
	names names
	near  *net.TCPConn // this process's end of the loopback connection
	far   net.Conn     // the transport's connection; nil if kept is set

	// kept is an interrupted delivery, or the delivery of an end of a pair. If kept is set, the
	// loopback connection only wakes the program, and an accept delivers kept.
	kept *delivery

	from   netip.AddrPort // source address of the loopback connection, as the listener sees it
	resets int            // number of earlier loopback connections that were reset in a queue

	// woken is set once wake has sent a byte on near to wake the listener. It is set before watched
	// is closed.
	woken bool

	mu      sync.Mutex
	claimed bool          // guarded by mu; an accept call has taken the arrival
	watched chan struct{} // closed when no goroutine watches near any more
}

// A delivery is an accepted socket on the way to the program.
type delivery struct {
	fd     int
	remote netip.AddrPort // the peer's address that accept shows
	from   *arrival       // nil for a real connection over loopback, without an arrival

	pair  *pair          // nil for a TCP connection
	local netip.AddrPort // for a pair: the address that the program's socket shows as its own
}

const (
	// claimTimeout is how long an arrival may stay in the program's queue.
	claimTimeout = time.Minute
	// waitSlice is how long a held accept sleeps before a check whether the program has left the
	// call. A signal that ends the call leaves no other trace.
	waitSlice = 200 * time.Millisecond
	// shortageWait is how long an accept waits for this process to have a free descriptor.
	shortageWait = 10 * time.Millisecond
	// unseenCheck is how often the supervisor checks whether an arrival has left the program's
	// queue without a served accept call.
	unseenCheck = 100 * time.Millisecond
	// maxResets is how often an arrival is offered again after a listener was closed with the
	// arrival in its queue.
	maxResets = 8
	// wakeTimeout bounds the wait for the byte of wake. If the program's queue was full, the kernel
	// retransmits the byte after about as long as the queue was full.
	wakeTimeout = claimTimeout
)

// acceptFar accepts the transport's connections for a service, until the listener is closed.
func (s *supervisor) acceptFar(svc *service) {
	for {
		far, err := svc.far.Accept()
		if err != nil {
			return
		}
		if c, ok := far.(interface{ SetLinger(int) error }); ok {
			c.SetLinger(lingerSeconds)
		}
		s.e.Status.Server().WatchConn(far, status.Hint{Role: "accept"})
		s.e.Metrics.WatchStream(far)
		s.relays.Go(func() { s.arrive(svc, far) })
	}
}

// arrive offers a connection of the transport to the program's listener.
func (s *supervisor) arrive(svc *service, far net.Conn) {
	a := &arrival{far: far}
	a.names.remote = addrPort(far.RemoteAddr())
	if p := addrPort(far.LocalAddr()); p.IsValid() {
		a.names.local = netip.AddrPortFrom(p.Addr(), svc.place.addr.Port())
	}
	if err := s.knockAnywhere(svc, a); err != nil {
		abort(far)
		if err == unix.ECONNREFUSED {
			s.checkListener(svc)
		}
	}
}

// knockAnywhere connects to any listener of a service, to announce an arrival.
func (s *supervisor) knockAnywhere(svc *service, a *arrival) error {
	to := svc.place.dialled()
	return s.knock(to, loopbackOf(familyOf(to.Addr())), a, claimTimeout)
}

// addrPort returns the address of a TCP connection's end, with IPv4 unmapped, and the zero value
// for other connections.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(t.AddrPort().Addr().Unmap(), t.AddrPort().Port())
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// knock connects to a listener of the program, to announce an arrival. limit bounds the wait for
// the connection. If knock returns an error, no accept has taken the arrival, and none will.
func (s *supervisor) knock(to netip.AddrPort, source netip.Addr, a *arrival, limit time.Duration) error {
	if s.spare.lent.Load() { // a waiting accept needs the free descriptors
		return unix.EMFILE
	}
	family := familyOf(to.Addr())
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	n, err := newNear(fd)
	if err != nil {
		return err
	}
	defer n.close()
	setMostHops(fd, family)
	if err := unix.Bind(fd, toSockaddr(netip.AddrPortFrom(source, 0), family)); err != nil {
		return err
	}
	// The arrival must be registered before the program can accept.
	from := localName(fd)
	a.from, a.watched = from, make(chan struct{})
	s.ls.mu.Lock()
	s.ls.arrivals[from] = a
	s.ls.mu.Unlock()
	err = unix.Connect(fd, toSockaddr(to, family))
	if err == unix.EINPROGRESS {
		err = unix.ETIMEDOUT
		if waitFor(fd, unix.POLLOUT, int(limit.Milliseconds())) {
			err = nil
			if e, gerr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); gerr == nil && e != 0 {
				err = unix.Errno(e)
			}
		}
	}
	var near *net.TCPConn
	if err == nil {
		a.wake(fd, to)
		near, err = n.conn()
	}
	a.mu.Lock()
	a.near = near
	a.mu.Unlock()
	if err != nil {
		close(a.watched)
		if !s.forget(from, a) {
			return nil
		}
		return err
	}
	s.watchUnclaimed(from, a)
	return nil
}

// wake sends a byte to a listener with TCP_DEFER_ACCEPT, because only connections with data are
// accepted there. takeWakingByte reads the byte before the program gets the socket. The supervisor
// does not change the option, because connections over plain TCP are still to be deferred.
func (a *arrival) wake(fd int, to netip.AddrPort) {
	if sockdiag.FindServerEnd(to, a.from).Deferred() {
		a.woken = true
		unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}
}

// takeWakingByte reads the byte of wake from an accepted socket. It returns EAGAIN if the byte has
// not arrived yet, and another error if the connection has ended.
func takeWakingByte(fd int) error {
	var b [1]byte
	n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
	if err == nil && n == 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// awaitWakingByte waits for the waking byte of a connection and then puts the connection back into
// the program's queue. The byte may be late because the kernel must retransmit the byte after the
// queue was full. Until then the program finds the queue empty.
func (s *supervisor) awaitWakingByte(l *carriedListener, d *delivery) {
	s.relays.Go(func() {
		err := error(unix.EAGAIN)
		for until := time.Now().Add(wakeTimeout); err == unix.EAGAIN && s.alive.Err() == nil &&
			time.Now().Before(until); {
			waitFor(d.fd, unix.POLLIN, int(waitSlice.Milliseconds()))
			err = takeWakingByte(d.fd)
		}
		if err != nil {
			d.drop()
			return
		}
		s.pushBack(l, d)
	})
}

// forget removes an arrival and reports whether the arrival was still registered.
func (s *supervisor) forget(from netip.AddrPort, a *arrival) bool {
	s.ls.mu.Lock()
	defer s.ls.mu.Unlock()
	if s.ls.arrivals[from] != a {
		return false
	}
	delete(s.ls.arrivals, from)
	return true
}

// watchUnclaimed closes an arrival if the program accepted the arrival unseen, or if the arrival
// stays in the program's queue for too long. An arrival was accepted unseen if the arrival leaves
// the queue without a claim, or if the program sends bytes or closes the connection. If the listener
// was closed with the arrival in the queue, the arrival is offered to another listener.
func (s *supervisor) watchUnclaimed(from netip.AddrPort, a *arrival) {
	go func() {
		defer close(a.watched)
		reset := a.watchNear(&s.ls.taking)
		a.mu.Lock()
		claimed := a.claimed
		a.mu.Unlock()
		if claimed || !s.forget(from, a) || reset && a.resets < maxResets && s.offerAgain(a) {
			return
		}
		abort(a.near)
		if a.kept != nil {
			a.kept.drop()
		} else {
			abort(a.far)
		}
		s.explain.line(event{Call: "accept", Remote: a.names.remote, Local: a.names.local,
			Path: "refused", Why: "the program accepted it unseen, or not at all"})
	}()
}

// watchNear waits until near has ended, has bytes, or is claimed, or until the arrival has waited
// too long. It reports whether the listener has reset near.
func (a *arrival) watchNear(taking *atomic.Int64) (reset bool) {
	stop := make(chan struct{})
	defer close(stop)
	go a.watchQueue(taking, stop)
	if a.far != nil {
		a.near.SetReadDeadline(time.Now().Add(claimTimeout))
	}
	a.mu.Lock()
	if a.claimed {
		a.near.SetReadDeadline(time.Unix(1, 0))
	}
	a.mu.Unlock()
	raw, err := a.near.SyscallConn()
	if err != nil {
		return false
	}
	raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
		reset = err == unix.ECONNRESET
		return err != unix.EAGAIN
	})
	return reset
}

// offerAgain offers an arrival to another listener at the same address, and reports whether there
// was one. It is called after a listener was closed with the arrival in its queue. That happens if
// each child of a server has a listener: while this process serves an accept call, it holds a copy of
// the listener, so that a dead child's listener is closed a moment late.
func (s *supervisor) offerAgain(a *arrival) bool {
	if d := a.kept; d != nil && d.remote.Port() == 0 {
		d.remote = netip.AddrPortFrom(d.remote.Addr(), a.from.Port()) // as givePair has answered
	}
	next := &arrival{names: a.names, far: a.far, kept: a.kept, resets: a.resets + 1}
	if s.knock(addrPort(a.near.RemoteAddr()), a.from.Addr(), next, claimTimeout) != nil {
		return false
	}
	a.near.Close()
	return true
}

// watchQueue makes watchUnclaimed close the arrival once the arrival has left the program's queue
// without a claim. An accept call first takes an arrival from the queue and makes the claim later,
// after any time on a busy machine. Therefore a check does not count while an accept call is
// between the two (taking is not 0).
func (a *arrival) watchQueue(taking *atomic.Int64, stop <-chan struct{}) {
	to := addrPort(a.near.RemoteAddr())
	look := time.NewTicker(unseenCheck)
	defer look.Stop()
	for left := false; !left; {
		select {
		case <-stop:
			return
		case <-look.C:
		}
		left = sockdiag.FindServerEnd(to, a.from).Accepted() && taking.Load() == 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.claimed {
		a.near.SetReadDeadline(time.Unix(1, 0))
	}
}

// claim ends the watch over an arrival after an accept call, and waits until nothing watches the
// arrival any more.
func (a *arrival) claim() {
	a.mu.Lock()
	a.claimed = true
	if a.near != nil {
		a.near.SetReadDeadline(time.Unix(1, 0))
	}
	a.mu.Unlock()
	<-a.watched
	if a.near != nil {
		a.near.SetReadDeadline(time.Time{})
	}
}

// accept serves accept and accept4. It must not block.
func (s *supervisor) accept(c *notify.Call) {
	flags := 0
	if c.Nr == unix.SYS_ACCEPT4 {
		flags = int(int32(c.Args[3]))
	}
	if flags&^(unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) != 0 {
		c.Continue()
		return
	}
	fd, err := c.Borrow(int(int32(c.Args[0])))
	switch {
	case outOfDescriptors(err):
		s.relays.Go(func() { s.acceptShort(c, flags) })
	case err != nil:
		c.Continue()
	default:
		s.acceptOn(c, fd, flags)
	}
}

// acceptOn serves accept on the listener fd, a copy of the program's descriptor. It closes fd.
func (s *supervisor) acceptOn(c *notify.Call, fd, flags int) {
	b := &borrowed{fd: fd}
	l := s.listenerOf(b)
	if l == nil {
		b.close()
		c.Continue()
		return
	}
	s.relays.Go(func() {
		defer b.close()
		s.serveAccept(c, b, l, flags)
	})
}

// listenerOf returns the carried listener of a socket, or nil if the listener is not carried.
func (s *supervisor) listenerOf(b *borrowed) *carriedListener {
	var err error
	if b.cookie, err = unix.GetsockoptUint64(b.fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return nil
	}
	b.family, _ = unix.GetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return s.ls.find(b.cookie)
}

// acceptShort is accept when this process has only its spare descriptors left. The call cannot be
// left to the kernel, because an arrival accepted unseen is lost. An empty queue cannot be reported
// either, because a program with edge-triggered epoll would not try again.
func (s *supervisor) acceptShort(c *notify.Call, flags int) {
	for ; c.Valid(); time.Sleep(shortageWait) {
		fd, err := c.Borrow(int(int32(c.Args[0])))
		switch {
		case err == nil:
			s.acceptOn(c, fd, flags)
			return
		case !outOfDescriptors(err):
			c.Continue()
			return
		}
		over, nonblock := false, false
		s.spare.use(func() bool {
			fd, err := c.Borrow(int(int32(c.Args[0])))
			if outOfDescriptors(err) {
				return false
			}
			b := &borrowed{fd: fd}
			defer b.close()
			var l *carriedListener
			if err == nil {
				l = s.listenerOf(b)
			}
			switch {
			case l == nil:
				b.close()
				c.Continue()
				over = true
			case !hasPeerRoom(c):
				over = true
			default:
				nonblock = isNonblock(b.fd)
				if err = s.takeAndDeliver(l, b, c, flags); outOfDescriptors(err) {
					return false
				}
				over = answerAccept(c, b, err, nonblock)
			}
			return true
		})
		if !over && nonblock {
			c.Return(0, unix.ENFILE)
			over = true
		}
		if over {
			return
		}
	}
}

// hasPeerRoom reports whether the address buffer of an accept call can be written. Otherwise the
// kernel answers the call: the kernel takes a connection from the queue, if any, and closes the
// connection. The lost arrival counts as accepted unseen.
func hasPeerRoom(c *notify.Call) bool {
	if c.Args[1] == 0 {
		return true
	}
	var n [4]byte
	if _, err := c.ReadMem(c.Args[2], n[:]); err != nil || int32(binary.NativeEndian.Uint32(n[:])) < 0 {
		c.Continue()
		return false
	}
	return true
}

// answerAccept answers an accept call after takeAndDeliver returned err. It returns false if the
// call must wait.
func answerAccept(c *notify.Call, b *borrowed, err error, nonblock bool) (over bool) {
	switch {
	case err == nil || err == errNotValid:
		return true
	case !nonblock && (err == unix.EAGAIN || outOfDescriptors(err)):
		return false
	case outOfDescriptors(err): // this process, not the program, lacks a descriptor: the connection stays in the queue
		err = unix.ENFILE
	}
	errno, _ := err.(unix.Errno)
	b.close()
	c.Return(0, errno)
	return true
}

func (s *supervisor) serveAccept(c *notify.Call, b *borrowed, l *carriedListener, flags int) {
	if !hasPeerRoom(c) {
		return
	}
	nonblock := isNonblock(b.fd)
	var until time.Time
	if tv, err := unix.GetsockoptTimeval(b.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && tv.Nano() > 0 {
		until = time.Now().Add(time.Duration(tv.Nano()))
	}
	thread := -1
	defer func() {
		if thread >= 0 {
			unix.Close(thread)
		}
	}()
	for {
		err := s.takeAndDeliver(l, b, c, flags)
		if outOfDescriptors(err) {
			s.spare.use(func() bool {
				err = s.takeAndDeliver(l, b, c, flags)
				return !outOfDescriptors(err)
			})
		}
		if answerAccept(c, b, err, nonblock || err == unix.EAGAIN && !until.IsZero() && !time.Now().Before(until)) {
			return
		}
		if outOfDescriptors(err) {
			time.Sleep(shortageWait)
			if !c.Valid() {
				return
			}
			continue
		}
		if thread < 0 {
			if thread, err = c.OpenThread(); err == notify.ErrGone {
				return
			}
		}
		slice := waitSlice
		if !until.IsZero() {
			slice = min(slice, max(time.Until(until), time.Millisecond))
		}
		p := []unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}, {Fd: int32(thread), Events: unix.POLLIN}}
		sock.Poll(p, int(slice.Milliseconds()))
		if p[1].Revents != 0 || !c.Valid() {
			return
		}
	}
}

// errNotValid reports a call that no longer exists.
const errNotValid = unix.Errno(0xfff)

// takeAndDeliver answers the call with a connection. After an error, there is no connection and the
// call is not answered yet.
func (s *supervisor) takeAndDeliver(l *carriedListener, b *borrowed, c *notify.Call, flags int) error {
	// A restarted call writes to the same memory as the previous call, so that the two must be
	// served in turn.
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.Valid() {
		return errNotValid
	}
	d, err := s.takeLocked(l, b.fd)
	if err == nil {
		b.close()
		s.deliver(c, b.family, l, d, flags)
	}
	return err
}

// takeLocked takes a connection from the program's queue. It does not wait, and returns EAGAIN if
// the queue is empty. The caller holds l.mu.
func (s *supervisor) takeLocked(l *carriedListener, fd int) (*delivery, error) {
	if !waitFor(fd, unix.POLLIN, 0) {
		return nil, unix.EAGAIN
	}
	s.ls.taking.Add(1) // see watchQueue
	defer s.ls.taking.Add(-1)
	got, sa, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return nil, err
	}
	d := &delivery{fd: got, remote: fromSockaddr(sa)}
	s.ls.mu.Lock()
	a := s.ls.arrivals[d.remote]
	delete(s.ls.arrivals, d.remote)
	s.ls.mu.Unlock()
	if a == nil {
		return d, nil
	}
	a.claim()
	if d := a.kept; d != nil {
		if a.near != nil {
			a.near.Close()
		}
		if d.remote.Port() == 0 {
			d.remote = netip.AddrPortFrom(d.remote.Addr(), a.from.Port())
		}
		if d.pair != nil && d.pair.shadow < 0 {
			d.pair.shadow = got // the loopback socket has the options that the listener passes on
			copyOptions(d.fd, got)
		} else {
			unix.Close(got)
		}
		return d, nil
	}
	if a.near == nil { // near could not be opened
		unix.Close(got)
		abort(a.far)
		return nil, unix.ECONNABORTED
	}
	d.from, d.remote = a, a.names.remote
	if !a.woken {
		return d, nil
	}
	switch err := takeWakingByte(got); err {
	case nil:
		return d, nil
	case unix.EAGAIN:
		s.awaitWakingByte(l, d)
		return nil, err
	default: // near is closed
		d.drop()
		return nil, unix.ECONNABORTED
	}
}

// deliver gives the program a connection as the result of the accept.
func (s *supervisor) deliver(c *notify.Call, family int, l *carriedListener, d *delivery, flags int) {
	unix.SetNonblock(d.fd, flags&unix.SOCK_NONBLOCK != 0)
	if c.Args[1] != 0 {
		if errno := s.short.store(c, c.TID, c.Args[1], c.Args[2], appendSockaddr(nil, d.remote, family)); errno != 0 {
			if c.Valid() {
				d.drop()
				c.Return(0, errno)
				return
			}
			s.pushBack(l, d)
			return
		}
	}
	cookie, _ := unix.GetsockoptUint64(d.fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	switch {
	case d.from != nil:
		s.names.set(cookie, d.from.names)
	case d.pair != nil:
		d.pair.family = family
		s.addPair(cookie, d.pair, names{local: d.local, remote: d.remote}, "accept")
	}
	cloexec := 0
	if flags&unix.SOCK_CLOEXEC != 0 {
		cloexec = unix.O_CLOEXEC
	}
	switch err := c.Inject(d.fd, cloexec); err {
	case nil:
		s.short.answered(c.TID)
	case notify.ErrGone:
		s.takeBack(l, d, cookie)
		return
	default: // EMFILE: the connection stays in the queue
		s.takeBack(l, d, cookie)
		errno, ok := err.(unix.Errno)
		if !ok {
			errno = unix.ECONNABORTED
		}
		c.Return(0, errno)
		return
	}
	unix.Close(d.fd)
	if d.pair != nil {
		s.stats.Accepted.Add(1)
		s.count("pair")
		s.explain.line(event{Call: "accept", thread: c.TID, Local: d.local, Remote: d.remote, Path: "pair"})
	}
	if d.from == nil {
		return
	}
	s.stats.Accepted.Add(1)
	s.count("sdp")
	s.explain.line(event{Call: "accept", thread: c.TID, Local: d.from.names.local,
		Remote: d.from.names.remote, Path: "sdp", via: d.from.far})
	s.relay(d.from.near, d.from.far, func() { s.names.end(cookie) })
}

// drop closes a delivery the program cannot get, and the arrival's connection.
func (d *delivery) drop() {
	unix.Close(d.fd)
	if d.pair != nil && d.pair.shadow >= 0 {
		unix.Close(d.pair.shadow)
	}
	if d.from != nil {
		abort(d.from.near)
		abort(d.from.far)
	}
}

// takeBack removes the records of a delivery, and pushes the delivery back.
func (s *supervisor) takeBack(l *carriedListener, d *delivery, cookie uint64) {
	s.forgetPair(cookie)
	s.pushBack(l, d)
}

// pushBack keeps a connection the program did not get because a signal interrupted the accept. It
// puts a new loopback connection into the program's queue. When the program accepts the new
// connection, the kept connection replaces the new connection.
func (s *supervisor) pushBack(l *carriedListener, d *delivery) {
	s.relays.Go(func() {
		if err := s.knockAnywhere(l.svc, &arrival{kept: d}); err != nil {
			d.drop()
		}
	})
}
