//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// A held socket of the program is in the state SYN_SENT, towards a listener of ours that drops
// every SYN. When the dial has succeeded, a second socket of ours, bound to the listener's address,
// connects to the program's socket. The result is a simultaneous open: both sockets become
// established. Therefore the program's socket shows exactly the states of a slow connect: epoll
// reports nothing, a second connect returns EALREADY, getpeername returns ENOTCONN. A program that
// gives up after a time-out leaves nothing behind.

// seize makes the program's socket a held socket. After an error, the socket is unchanged.
func (s *supervisor) seize(b *borrowed, d *dial) (*holder, error) {
	h, err := newHolder(d.to.Addr().Is4(), b.family)
	if err != nil {
		return nil, err
	}
	if err := dialRoom(h.fd); err != nil {
		h.close()
		return nil, err
	}
	s.names.set(b.cookie, names{local: netip.AddrPortFrom(loopbackOf(familyOf(d.to.Addr())), d.port), remote: d.to})
	if err := earlier(connectNow(b, h.addr)); err != nil {
		s.names.remove(b.cookie)
		h.close()
		return nil, err
	}
	h.at = localName(b.fd)
	return h, nil
}

// dialRoom returns an error if fewer descriptors are free than a plain dial may need. A held socket
// cannot be left to the kernel any more. If the dial then failed because no descriptor is free, the
// plain dial would fail as well, and so would the program's connect.
func dialRoom(fd int) (err error) {
	var fds []int
	for len(fds) < 4 && err == nil {
		var n int
		if n, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			fds = append(fds, n)
		}
	}
	for _, n := range fds {
		unix.Close(n)
	}
	return err
}

// notHeld answers a connect whose socket could not be held. err is the reason.
func (s *supervisor) notHeld(c *notify.Call, b *borrowed, d *dial, err error) {
	err = fmt.Errorf("hold the socket: %w", err)
	s.relays.Go(func() {
		<-d.done
		if d.err == nil {
			d.conn.Close()
		}
	})
	s.settle(b.cookie, d)
	b.close()
	if !s.answerEarlier(c, d, err) {
		s.leave(c, err, d.to)
	}
}

// goOn answers a connect whose dial continues. It takes over b and h.
func (s *supervisor) goOn(c *notify.Call, b *borrowed, d *dial, h *holder) {
	held := d.heldName()
	if held.Port() == 0 { // until the transport has an address
		held = netip.AddrPortFrom(held.Addr(), h.at.Port())
	}
	s.names.set(b.cookie, names{local: held, remote: d.to})
	close(d.settled)
	limit, nonblock := sendTimeout(b.fd), isNonblock(b.fd)
	ended := make(chan struct{})
	s.relays.Go(func() {
		defer close(ended)
		defer b.close()
		defer h.close()
		refused := s.finishHold(c.TID, b, d, h)
		s.mu.Lock()
		delete(s.dials, b.cookie)
		s.mu.Unlock()
		if refused {
			h.refuse(s.alive, b.fd)
		}
	})
	switch {
	case nonblock:
		c.Return(0, unix.EINPROGRESS)
		return
	case limit == 0:
		c.Continue()
		return
	}
	// With SO_SNDTIMEO the kernel would return EALREADY, but a first connect returns EINPROGRESS.
	select {
	case <-ended:
		c.Continue()
	case <-time.After(limit):
		c.Return(0, unix.EINPROGRESS)
	}
}

// heldName returns the name of a socket whose transport has no address yet: the address the routing
// table chooses.
func (d *dial) heldName() netip.AddrPort {
	from := d.from
	if !from.IsValid() {
		if c, err := net.Dial("udp", d.to.String()); err == nil {
			from = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			c.Close()
		}
	}
	if !from.IsValid() {
		from = loopbackOf(familyOf(d.to.Addr()))
	}
	return netip.AddrPortFrom(from, d.port)
}

// sendTimeout returns SO_SNDTIMEO of a socket, 0 if unset.
func sendTimeout(fd int) time.Duration {
	tv, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil {
		return 0
	}
	return time.Duration(tv.Nano())
}

// finishHold waits for the dial and ends the hold. refused is true if the program's connect must
// fail.
func (s *supervisor) finishHold(tid int, b *borrowed, d *dial, h *holder) (refused bool) {
	<-d.done
	path, why := "sdp", ""
	if d.err != nil && !s.o.Require {
		// It is too late for the program's own socket to connect to the address directly.
		path, why = "tcp, relayed", whyNot(d.err)
		d.conn, d.err = dialPlain(s.alive, d)
	}
	if d.err != nil {
		s.names.end(b.cookie)
		s.stats.Refused.Add(1)
		s.explain.line(event{Call: "connect", thread: tid, Remote: d.to, Path: "refused", Why: whyNot(d.err)})
		return true
	}
	s.names.set(b.cookie, d.names(d.conn.LocalAddr()))
	b.close()
	near, err := h.open()
	if err != nil { // the program has closed the socket, or its own time-out has passed
		abort(d.conn)
		s.names.end(b.cookie) // nevertheless, the program's socket may be connected
		s.stats.Refused.Add(1)
		s.explain.line(event{Call: "connect", thread: tid, Remote: d.to, Path: "refused",
			Why: "the program waits no longer: " + err.Error()})
		return false
	}
	s.count(path)
	s.explain.line(event{Call: "connect", thread: tid, Remote: d.to, Path: path, Why: why, via: d.conn})
	cookie := b.cookie
	s.relay(near, d.conn, func() { s.names.end(cookie) })
	return false
}

// dialPlain connects over plain TCP for the program.
func dialPlain(ctx context.Context, d *dial) (net.Conn, error) {
	nd := net.Dialer{Timeout: dialTimeout}
	if d.from.IsValid() {
		nd.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.from, 0))
	}
	return nd.DialContext(ctx, "tcp", d.to.String())
}

// A holder is a listener on loopback without answers.
type holder struct {
	fd     int
	near   *nearSocket
	filler int // a connection that fills the queue; -1 if a filter drops the SYNs
	family int
	addr   netip.AddrPort
	at     netip.AddrPort // address of the program's socket
}

func newHolder(is4 bool, family int) (*holder, error) {
	if is4 {
		family = unix.AF_INET // also for an IPv6 socket with a mapped address
	}
	fd, err := reusable(family)
	if err != nil {
		return nil, err
	}
	h := &holder{fd: fd, filler: -1, family: family}
	if err := h.listen(); err != nil {
		h.close()
		return nil, err
	}
	if fd, err = reusable(family); err == nil {
		h.near, err = newNear(fd)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *holder) listen() error {
	if err := unix.Bind(h.fd, toSockaddr(netip.AddrPortFrom(loopbackOf(h.family), 0), h.family)); err != nil {
		return err
	}
	drop := []unix.SockFilter{{Code: 0x06, K: 0}} // accept no packet
	err := unix.SetsockoptSockFprog(h.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &drop[0]})
	if lerr := unix.Listen(h.fd, 0); lerr != nil {
		return lerr
	}
	h.addr = localName(h.fd)
	if err == nil {
		return nil
	}
	// Some systems do not let an unprivileged process attach a filter. A listener whose queue is
	// full drops every SYN as well. A single connection fills the queue.
	if h.filler, err = unix.Socket(h.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	return unix.Connect(h.filler, toSockaddr(h.addr, h.family))
}

// reusable returns a TCP socket whose address other sockets may bind to as well.
func reusable(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	setMostHops(fd, family)
	return fd, nil
}

// open connects to the program's socket and returns our end. It returns ECONNREFUSED if the
// program's socket no longer connects.
func (h *holder) open() (net.Conn, error) {
	fd := h.near.fd
	err := unix.Bind(fd, toSockaddr(h.addr, h.family))
	if err == nil {
		err = unix.Connect(fd, toSockaddr(h.at, h.family))
	}
	if err == unix.EINPROGRESS {
		err = unix.ETIMEDOUT
		if waitFor(fd, unix.POLLOUT, int(joinTimeout.Milliseconds())) {
			if e, serr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); serr != nil || e != 0 {
				err = errors.Join(serr, unix.Errno(e))
			} else {
				err = nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return h.near.conn()
}

// refuse makes the connect of the program's socket fail with ECONNREFUSED: once nothing listens at
// the holder's address, a reset answers the next SYN of the socket, which may take a second. A
// disconnect and a connect to a closed port would be quicker, but the program could see ECONNRESET
// in between. refuse keeps the port until the reset, because the kernel may assign a free port to
// another listener, which would then get the program's connection. fd is a descriptor of the
// program's socket.
func (h *holder) refuse(ctx context.Context, fd int) {
	kept := unix.Bind(h.near.fd, toSockaddr(h.addr, h.family))
	h.closeListener()
	for kept == nil && ctx.Err() == nil && !waitFor(fd, unix.POLLOUT, int(waitSlice.Milliseconds())) {
	}
}

func (h *holder) closeListener() {
	for _, fd := range []*int{&h.fd, &h.filler} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

func (h *holder) close() {
	h.closeListener()
	if h.near != nil {
		h.near.close()
	}
}
