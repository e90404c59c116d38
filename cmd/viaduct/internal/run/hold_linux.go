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

// A held socket of the program is in the state SYN_SENT, towards a listener of
// ours that drops every SYN. When the dial has succeeded, a second socket of
// ours, bound to that listener's address, connects to the program's: a
// simultaneous open, upon which both are established. So the program's socket
// shows exactly the states of a connect that takes its time: epoll is silent,
// a second connect is EALREADY, getpeername ENOTCONN, and an end by the
// program's own time-out leaves nothing behind.

// hold answers a connect whose dial takes long. It reports whether it keeps the
// borrowed socket.
func (s *supervisor) hold(c *notify.Call, b *borrowed, d *dial) (kept bool) {
	h, err := newHolder(d.to.Addr().Is4(), b.family)
	if err == nil {
		s.names.set(b.cookie, names{local: d.heldName(b.family), remote: d.to})
		if err = connectNow(b.fd, h.addr, b.family); err != nil {
			h.close()
			s.names.remove(b.cookie)
		}
	}
	if err != nil {
		err = fmt.Errorf("hold the socket: %w", err)
		// Without a hold the call waits here for the dial.
		s.relays.Go(func() {
			<-d.done
			if d.err == nil {
				d.conn.Close()
			}
		})
		d.err = err
		s.settle(b.cookie, d)
		s.leave(c, err, d.to)
		return false
	}
	at := localName(b.fd)
	if d.port == 0 { // until the transport has one
		held := d.heldName(b.family)
		s.names.set(b.cookie, names{local: netip.AddrPortFrom(held.Addr(), at.Port()), remote: d.to})
	}
	close(d.settled)
	ended := make(chan struct{})
	s.relays.Go(func() {
		defer close(ended)
		defer b.close()
		defer h.close()
		s.finishHold(c.TID, b, d, h, at)
		s.mu.Lock()
		delete(s.dials, b.cookie)
		s.mu.Unlock()
	})
	limit := sendTimeout(b.fd)
	if limit == 0 || isNonblock(b.fd) {
		answerConnect(c, b.fd)
		return true
	}
	// With SO_SNDTIMEO the kernel would say EALREADY where a first connect says
	// EINPROGRESS.
	select {
	case <-ended:
		c.Continue()
	case <-time.After(limit):
		c.Return(0, unix.EINPROGRESS)
	}
	return true
}

// heldName is the name of a socket whose transport has none yet: the address that
// the routing table chooses.
func (d *dial) heldName(family int) netip.AddrPort {
	from := d.from
	if !from.IsValid() {
		if c, err := net.Dial("udp", d.to.String()); err == nil {
			from = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			c.Close()
		}
	}
	if !from.IsValid() {
		from = loopbackOf(family)
	}
	return netip.AddrPortFrom(from, d.port)
}

// sendTimeout is a socket's SO_SNDTIMEO, 0 if it has none.
func sendTimeout(fd int) time.Duration {
	tv, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil {
		return 0
	}
	return time.Duration(tv.Nano())
}

// finishHold waits for the dial and ends the hold, at being the address of the
// program's socket.
func (s *supervisor) finishHold(tid int, b *borrowed, d *dial, h *holder, at netip.AddrPort) {
	<-d.done
	path, why := "sdp", ""
	if d.err != nil && !s.o.Require {
		// Too late for the program's own socket to go to the place itself.
		path, why = "tcp, relayed", whyNot(d.err)
		d.conn, d.err = dialPlain(s.alive, d)
	}
	if d.err != nil {
		s.names.end(b.cookie)
		s.stats.Refused.Add(1)
		s.explain.line(event{Call: "connect", thread: tid, Remote: d.to, Path: "refused", Why: whyNot(d.err)})
		// Without the holder the next SYN of the program's socket is answered by a
		// reset, which is ECONNREFUSED. That may take a second. To take the socket
		// back and connect it to a closed port would be quicker, but the program could
		// see the ECONNRESET between.
		return
	}
	s.names.set(b.cookie, d.names(d.conn.LocalAddr()))
	near, err := h.open(at)
	if err != nil { // the program has closed it, or its own time was up
		abort(d.conn)
		s.names.remove(b.cookie)
		s.stats.Refused.Add(1)
		s.explain.line(event{Call: "connect", thread: tid, Remote: d.to, Path: "refused", Why: "the program waits no longer: " + err.Error()})
		return
	}
	s.count(path)
	s.explain.line(event{Call: "connect", thread: tid, Remote: d.to, Path: path, Why: why, via: d.conn})
	cookie := b.cookie
	s.relay(near, d.conn, func() { s.names.end(cookie) })
}

// dialPlain connects in the program's place.
func dialPlain(ctx context.Context, d *dial) (net.Conn, error) {
	nd := net.Dialer{Timeout: dialTimeout}
	if d.from.IsValid() {
		nd.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.from, 0))
	}
	return nd.DialContext(ctx, "tcp", d.to.String())
}

// A holder is a listener on loopback that answers nothing.
type holder struct {
	fd     int
	family int
	addr   netip.AddrPort
}

func newHolder(is4 bool, family int) (*holder, error) {
	if is4 {
		family = unix.AF_INET // also for the mapped addresses of an IPv6 socket
	}
	fd, err := reusable(family)
	if err != nil {
		return nil, err
	}
	h := &holder{fd: fd, family: family}
	drop := []unix.SockFilter{{Code: 0x06, K: 0}} // keep no byte of any packet
	for _, step := range []func() error{
		func() error {
			return unix.Bind(fd, toSockaddr(netip.AddrPortFrom(loopbackOf(family), 0), family))
		},
		func() error {
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
		},
		func() error { return unix.Listen(fd, 1) },
	} {
		if err := step(); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	h.addr = localName(fd)
	return h, nil
}

// reusable is a TCP socket whose address others may bind to as well.
func reusable(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	return fd, nil
}

// open meets the program's socket, which is at the given address, and returns
// our end. The error is ECONNREFUSED if that does not connect any more.
func (h *holder) open(at netip.AddrPort) (net.Conn, error) {
	fd, err := reusable(h.family)
	if err != nil {
		return nil, err
	}
	if err = unix.Bind(fd, toSockaddr(h.addr, h.family)); err == nil {
		err = unix.Connect(fd, toSockaddr(at, h.family))
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
		unix.Close(fd)
		return nil, err
	}
	return toConn(fd)
}

func (h *holder) close() { unix.Close(h.fd) }
