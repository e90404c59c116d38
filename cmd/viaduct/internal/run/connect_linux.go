//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// How a connect is served. The supervisor works on a copy of the descriptor of the program's
// socket. It starts to connect the socket, without blocking, to a separate address that does not
// answer yet (see hold). If a signal interrupts the call, the program therefore finds a connecting
// socket, as after any interrupted connect. Then the kernel performs the program's own call, but
// ignores the address because the socket is already connecting. So the kernel determines results,
// time-outs, signals and restarts, and serving a call twice does no harm.
//
// Meanwhile the supervisor dials the transport. If the transport refuses within Options.Bound, the
// supervisor disconnects the socket again and leaves the connect to the kernel: the connection is
// plain TCP. If dialling takes longer, the program's call proceeds, and the socket remains held.
//
// For an MPTCP socket, the supervisor dials first and then connects the socket to a lane.

// A dial is a connect in progress.
type dial struct {
	rule *toRule
	// paired is set once an end of a pair has replaced the socket. Calls waiting for settled must
	// then start again.
	paired bool
	to     netip.AddrPort
	from   netip.Addr // the address that the program bound its socket to; invalid if none
	port   uint16     // the port that the program bound its socket to; 0 if none

	done chan struct{} // closed when conn and err are set
	conn net.Conn
	err  error

	settled chan struct{} // closed when the program's socket is connected, held, or left to the kernel
}

// connect serves a connect call. It must not block.
func (s *supervisor) connect(c *notify.Call) {
	to, ok, err := s.readAddr(c)
	if err != nil {
		s.leave(c, &notCarried{why: "the process can't be looked into"}, netip.AddrPort{})
		return
	}
	if !ok || to.addr.Port() == 0 {
		if !s.pairs.used.Load() && !s.names.used.Load() {
			c.Continue()
			return
		}
		s.relays.Go(func() {
			if !s.connectPaired(c) {
				if disconnects(c) {
					s.forgetNames(c)
				}
				c.Continue()
			}
		})
		return
	}
	r := s.rules.outgoing(to.addr, s.carrier.named)
	if r == nil && s.explain == nil && !s.o.Require && !s.pairs.used.Load() && !s.names.used.Load() &&
		!s.mayPair(to.addr) {
		s.stats.Plain.Add(1)
		c.Continue()
		return
	}
	s.relays.Go(func() { s.carryConnect(c, r, to) })
}

// disconnects reports whether a connect disconnects the socket (AF_UNSPEC).
func disconnects(c *notify.Call) bool {
	var family [2]byte
	if n := int(int32(c.Args[2])); n < len(family) || n > lenStorage {
		return false
	}
	_, err := c.ReadMem(c.Args[1], family[:])
	return err == nil && binary.NativeEndian.Uint16(family[:]) == unix.AF_UNSPEC
}

// forgetNames removes the recorded names of a socket about to be disconnected.
func (s *supervisor) forgetNames(c *notify.Call) {
	if b, err := s.borrow(c); err == nil {
		s.names.remove(b.cookie)
		b.close()
	}
}

// readAddr reads the address a connect call points to. ok is false if the memory cannot be read or
// the address is of another family. err is set only if the process must not be accessed.
func (s *supervisor) readAddr(c *notify.Call) (to target, ok bool, err error) {
	n := int(int32(c.Args[2]))
	if n < lenInet || n > lenStorage {
		return to, false, nil
	}
	b := make([]byte, min(n, lenInet6))
	if _, err := c.ReadMem(c.Args[1], b); err != nil {
		if err == unix.EPERM {
			return to, false, err
		}
		return to, false, nil // the kernel returns EFAULT, too
	}
	to, ok = parseSockaddr(b)
	return to, ok, nil
}

func (s *supervisor) carryConnect(c *notify.Call, r *toRule, want target) {
	if s.connectPaired(c) {
		return
	}
	to := want.addr
	b, err := s.borrow(c)
	if err == nil && !c.Valid() {
		b.close()
		return
	}
	if err != nil {
		if r == nil {
			err = &notCarried{why: "no rule", quiet: err.(*notCarried).quiet}
		}
		s.leave(c, err, to)
		return
	}
	defer func() {
		if b != nil {
			b.close()
		}
	}()
	if want.refusedBy(b, boundTo(b.fd).Addr()) {
		b.close()
		c.Continue()
		return
	}
	var noPair error
	if s.mayPair(to) {
		done, before, err := s.connectPair(c, b, to)
		if before != nil {
			s.connectAfter(before, c, b, r, want)
			return
		}
		if done {
			return
		}
		noPair = err
	}
	d, mine, err := s.enter(c.TID, b, r, to)
	if r == nil && noPair != nil {
		err = &notCarried{why: noRule + "; " + noPair.Error()}
	}
	switch {
	case err != nil:
		b.close()
		s.leave(c, err, to)
		return
	case d == nil: // connected, connecting, listening, or failed: the kernel has the answer
		b.close()
		c.Continue()
		return
	case !mine:
		s.connectAfter(d, c, b, r, want)
		return
	}
	bound := s.o.Bound
	if limit := sendTimeout(b.fd); limit > 0 && !isNonblock(b.fd) {
		bound = min(bound, limit)
	}
	if b.mptcp {
		if s.joinLane(c, b, d, bound) {
			b = nil
		}
		return
	}
	h, err := s.seize(b, d)
	if err != nil {
		s.notHeld(c, b, d, err)
		return
	}
	select {
	case <-d.done:
		if d.err != nil && !c.Valid() {
			// The signal may have made the program poll. The program must not see the socket
			// disconnected, so that the hold goes on.
			s.goOn(c, b, d, h)
			b = nil
			return
		}
	case <-time.After(bound):
		s.goOn(c, b, d, h)
		b = nil
		return
	}
	defer s.settle(b.cookie, d)
	defer h.close()
	if d.err == nil {
		s.names.set(b.cookie, d.names(d.conn.LocalAddr()))
		var near net.Conn
		if near, err = h.open(); err == nil {
			cookie := b.cookie
			s.relay(near, d.conn, func() { s.names.end(cookie) })
			s.carried(c, "connect", d)
			answerConnect(c, b)
			return
		}
		abort(d.conn)
		d.err = fmt.Errorf("connect the socket over loopback: %w", err)
	}
	disconnect(b.fd)
	s.names.remove(b.cookie)
	b.close()
	s.refused(c, d)
}

// joinLane serves a connect of a socket that cannot be held from the start. kept is true if
// joinLane has taken over b.
func (s *supervisor) joinLane(c *notify.Call, b *borrowed, d *dial, bound time.Duration) (kept bool) {
	select {
	case <-d.done:
	case <-time.After(bound):
		h, err := s.seize(b, d)
		if err != nil {
			s.notHeld(c, b, d, err)
			return false
		}
		s.goOn(c, b, d, h)
		return true
	}
	defer s.settle(b.cookie, d)
	if d.err != nil {
		b.close()
		s.refused(c, d)
		return false
	}
	if err := s.attach(b, d); err != nil {
		d.conn.Close()
		b.close()
		if s.answerEarlier(c, d, err) {
			return false
		}
		d.err = err
		s.refused(c, d)
		return false
	}
	s.carried(c, "connect", d)
	answerConnect(c, b)
	return false
}

// An earlierError is the error of an earlier connect of the socket for whose end the program did
// not wait. The kernel reports the error once, as the only effect of the next connect.
type earlierError struct{ errno unix.Errno }

func (e *earlierError) Error() string {
	return "the socket's earlier connect failed: " + e.errno.Error()
}

// earlier returns err as an *earlierError if the cause must be an earlier connect: a connect over
// loopback, to an address that does not refuse, cannot have caused err. Other errors are returned
// unchanged.
func earlier(err error) error {
	switch errno, _ := errors.AsType[unix.Errno](err); errno {
	case unix.ECONNREFUSED, unix.ECONNABORTED, unix.ECONNRESET, unix.ETIMEDOUT, unix.EHOSTUNREACH:
		return &earlierError{errno}
	}
	return err
}

// answerEarlier answers a connect with the error of the earlier connect. It returns false if err is
// another error.
func (s *supervisor) answerEarlier(c *notify.Call, d *dial, err error) bool {
	e, ok := errors.AsType[*earlierError](err)
	if !ok {
		return false
	}
	s.stats.Refused.Add(1)
	s.explain.line(event{Call: "connect", thread: c.TID, Remote: d.to, Path: "refused", Why: err.Error()})
	c.Return(0, e.errno)
	return true
}

// answerConnect answers a connect of a connecting or connected socket.
func answerConnect(c *notify.Call, b *borrowed) {
	nonblock := isNonblock(b.fd)
	b.close()
	if nonblock {
		c.Return(0, unix.EINPROGRESS)
		return
	}
	c.Continue()
}

// refused answers a connect not carried by SDP. The connection becomes plain TCP, or the connect
// fails with --require.
func (s *supervisor) refused(c *notify.Call, d *dial) {
	why := whyNot(d.err)
	if !s.o.Require {
		s.leave(c, &notCarried{why: why}, d.to)
		return
	}
	s.stats.Refused.Add(1)
	s.explain.line(event{Call: "connect", thread: c.TID, Remote: d.to, Path: "refused", Why: why})
	c.Return(0, errnoOf(d.err))
}

// errnoOf returns the error number for the program if a dial failed.
func errnoOf(err error) unix.Errno {
	for _, e := range []unix.Errno{unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return e
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return unix.ETIMEDOUT
	}
	return unix.ECONNREFUSED
}

// connectAfter makes a connect wait for an earlier connect of the same socket. Either the program
// has restarted the call after a signal, or another thread called.
func (s *supervisor) connectAfter(d *dial, c *notify.Call, b *borrowed, r *toRule, to target) {
	b.close()
	<-d.settled
	if d.paired {
		s.carryConnect(c, r, to)
		return
	}
	c.Continue()
}

// leave leaves a connect to the kernel, and explains why.
func (s *supervisor) leave(c *notify.Call, err error, to netip.AddrPort) {
	n, ok := errors.AsType[*notCarried](err)
	if !ok {
		n = &notCarried{why: err.Error()}
	}
	if !n.quiet {
		if s.o.Require && n.why != noRule {
			s.stats.Refused.Add(1)
			s.explain.line(event{Call: "connect", thread: c.TID, Remote: to, Path: "refused", Why: n.why})
			c.Return(0, unix.ECONNREFUSED)
			return
		}
		s.stats.Plain.Add(1)
		s.explain.line(event{Call: "connect", thread: c.TID, Remote: to, Path: "tcp", Why: n.why})
	}
	c.Continue()
}

// noRule is the most frequent reason why a connection is not carried.
const noRule = "no rule"

// boundToInterface is the reason for sockets out of reach of loopback.
const boundToInterface = "the socket is bound to an interface"

// enter returns the dial of a socket. mine is true if enter started the dial. d is nil, without an
// error, if the kernel can answer the connect.
func (s *supervisor) enter(thread int, b *borrowed, r *toRule, to netip.AddrPort) (d *dial, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.dials[b.cookie]; d != nil {
		return d, false, nil
	}
	if tcpState(b.fd) != tcpClose || hasError(b.fd) {
		return nil, false, nil
	}
	s.names.remove(b.cookie) // the names of an earlier connection of the socket
	switch dev, err := unix.GetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); {
	case r == nil:
		return nil, false, &notCarried{why: noRule}
	case r.mapped && !s.carrier.named && s.carrier.local.has(to.Addr()):
		return nil, false, &notCarried{why: "same host, whose Port Mapper is asked only with --portmap"}
	case err == nil && dev != 0:
		return nil, false, &notCarried{why: boundToInterface}
	}
	d = &dial{rule: r, to: to, done: make(chan struct{}), settled: make(chan struct{})}
	d.bind(b)
	s.dials[b.cookie] = d
	s.relays.Go(func() {
		ctx, cancel := context.WithTimeout(s.alive, dialTimeout)
		defer cancel()
		if s.explain != nil {
			trying := time.AfterFunc(tryingAfter, func() {
				s.explain.line(event{Call: "trying", thread: thread, Remote: d.to, Path: "sdp",
					Why: s.carrier.trying(d.rule, d.to)})
			})
			defer trying.Stop()
		}
		d.conn, d.err = s.carrier.dial(ctx, d.rule, d.to, d.from)
		close(d.done)
	})
	return d, true, nil
}

// bind records the address the program bound the socket to.
func (d *dial) bind(b *borrowed) {
	bound := boundTo(b.fd)
	d.from, d.port = bound.Addr(), bound.Port()
}

// boundTo returns the address an unconnected socket is bound to. It is not valid if the kernel may
// choose the address.
func boundTo(fd int) netip.AddrPort {
	bound := localName(fd)
	if bound.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.Addr{}, bound.Port())
	}
	return bound
}

// settle ends a dial, and wakes the waiting calls.
func (s *supervisor) settle(cookie uint64, d *dial) {
	s.mu.Lock()
	delete(s.dials, cookie)
	s.mu.Unlock()
	close(d.settled)
}

// names returns the names shown by the program's socket: the transport's own addresses, with the
// local port the program asked for.
func (d *dial) names(local net.Addr) names {
	n := names{remote: d.to}
	n.local = addrPort(local)
	if n.local.Addr().Is4() != d.to.Addr().Is4() { // the rule maps to an address of the other family
		n.local = netip.AddrPortFrom(d.heldName().Addr(), n.local.Port())
	}
	if d.port != 0 {
		n.local = netip.AddrPortFrom(n.local.Addr(), d.port)
	}
	return n
}

// attach connects the program's socket to this process and relays the connection.
func (s *supervisor) attach(b *borrowed, d *dial) error {
	lane := s.lanes[0]
	if !d.to.Addr().Is4() {
		lane = s.lanes[1]
	}
	if lane == nil {
		return errors.New("the host has no loopback address of this family")
	}
	// The names are set first, because another thread may wait for the socket and then ask for the
	// names.
	s.names.set(b.cookie, d.names(d.conn.LocalAddr()))
	near, err := lane.join(b)
	if err != nil {
		s.names.remove(b.cookie)
		return fmt.Errorf("connect the socket over loopback: %w", err)
	}
	cookie := b.cookie
	s.relay(near, d.conn, func() { s.names.end(cookie) })
	return nil
}

// A lane is a listener on loopback. The supervisor connects programs' sockets to lanes.
type lane struct {
	addr netip.AddrPort

	mu sync.Mutex // serializes connections
	fd int        // guarded by mu
}

// joinTimeout bounds a connection over loopback, usually a matter of microseconds.
const joinTimeout = time.Second

func newLane(family int) (*lane, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	setMostHops(fd, family)
	if err = unix.Bind(fd, toSockaddr(netip.AddrPortFrom(loopbackOf(family), 0), family)); err == nil {
		err = unix.Listen(fd, 128)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &lane{fd: fd, addr: localName(fd)}, nil
}

// join connects the program's socket to the lane and returns the other end. It closes other
// connections to the lane, for example of a port scanner. The source address identifies the
// program's socket, because no other socket can have the address while the program's socket is
// open.
func (l *lane) join(b *borrowed) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC)
		if err != nil {
			break
		}
		unix.Close(fd)
	}
	if err := connectNow(b, l.addr); err != nil {
		return nil, earlier(err)
	}
	c, err := l.acceptFrom(localName(b.fd))
	if err != nil { // no descriptors are free
		disconnect(b.fd)
	}
	return c, err
}

// acceptFrom accepts the connection with the source address from.
func (l *lane) acceptFrom(from netip.AddrPort) (net.Conn, error) {
	for until := time.Now().Add(joinTimeout); time.Now().Before(until); {
		if !waitFor(l.fd, unix.POLLIN, int(time.Until(until).Milliseconds())+1) {
			continue
		}
		fd, sa, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if outOfDescriptors(err) {
			return nil, err
		}
		if err != nil {
			continue
		}
		// An ended connection belongs to an earlier socket with the same address.
		if fromSockaddr(sa) == from && tcpState(fd) == tcpEstablished {
			return toConn(fd)
		}
		unix.Close(fd)
	}
	return nil, syscall.ETIMEDOUT
}

// connectNow starts to connect a socket of the program, without blocking.
//
// A connect does not block if the socket has O_NONBLOCK. But the program shares the flag: if a signal
// interrupts its call meanwhile, it may set the flag before this process restores the old one. So
// the connect is made by an empty send with Fast Open, which takes the flag for this call only.
func connectNow(b *borrowed, to netip.AddrPort) error {
	// With Fast Open, the kernel would send no SYN before the first byte is written.
	if on, err := unix.GetsockoptInt(b.fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT); err == nil && on != 0 {
		unix.SetsockoptInt(b.fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 0)
	}
	sa := toSockaddr(to, b.family)
	err := error(unix.EOPNOTSUPP)
	if !b.mptcp && !isNonblock(b.fd) {
		err = unix.Sendto(b.fd, nil, unix.MSG_FASTOPEN|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, sa)
	}
	if err == unix.EOPNOTSUPP { // also if net.ipv4.tcp_fastopen forbids Fast Open
		err = withNonblock(b.fd, func() error { return unix.Connect(b.fd, sa) })
	}
	if err == unix.EINPROGRESS {
		return nil
	}
	return err
}
