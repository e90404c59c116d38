package sock

import (
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OwnListener takes the descriptor of the TCP listener l away from the runtime. Connections
// accepted by the result are like connections of [Own], with the options of t set. OwnListener
// returns l itself if l is no TCP listener, or if the process has no descriptor left. Otherwise l
// must not be used after OwnListener. After an error, such as an unknown congestion control, l is
// still open.
func OwnListener(l net.Listener, t Tuning) (net.Listener, error) {
	tl, ok := l.(*net.TCPListener)
	if !ok {
		return l, nil
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return l, nil
	}
	s := dup(tl)
	if s == nil {
		return l, nil
	}
	o := &ownedListener{s: s, addr: addr, tuning: t}
	err := netKeepAlive(s.fd) // on Linux, accepted connections inherit the option
	if err == nil {
		err = tune(s.fd, t)
	}
	if err == nil && !s.OpenArrivals() {
		err = s.closedOr(unix.EMFILE)
	}
	if err != nil {
		s.Close(false)
		return nil, err
	}
	tl.Close()
	if Shares(t.SameHost) {
		if o.meet = openRendezvous(addrPort(addr), t.SameHostDir); o.meet != nil {
			o.meet.wake(s.in.epfd)
		}
	}
	return o, nil
}

type ownedListener struct {
	s      *Socket
	addr   *net.TCPAddr
	meet   *rendezvous // nil: no shared memory is offered
	tuning Tuning
	closed atomic.Bool
}

func (l *ownedListener) Addr() net.Addr { return l.addr }

// Close closes the listener and ends a waiting Accept. A second call returns net.ErrClosed.
func (l *ownedListener) Close() error {
	if l.closed.Swap(true) {
		return l.opError("close", net.ErrClosed)
	}
	l.s.Close(false)
	if l.meet != nil {
		l.meet.close()
	}
	return nil
}

func (l *ownedListener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: l.addr, Err: err}
}

// Accept waits for the next connection, and serves requests for shared memory meanwhile. After
// Close the error wraps net.ErrClosed.
func (l *ownedListener) Accept() (net.Conn, error) {
	c, err := (*conn)(nil), ErrWouldBlock
	try := func() bool {
		if c, err = l.take(); err != ErrWouldBlock {
			return true
		}
		if l.meet != nil {
			l.meet.serveNow()
		}
		return false
	}
	for err == ErrWouldBlock {
		serr := l.s.Sleep(func(uintptr) bool {
			l.s.Arm() // once, because the listener is never disarmed
			return try()
		})
		if serr != nil && err == ErrWouldBlock {
			err = serr
		}
	}
	if err != nil {
		return nil, l.opError("accept", l.s.closedOr(err))
	}
	if l.meet != nil {
		l.meet.welcome(c)
	}
	return c, nil
}

// take accepts a connection without waiting. The error is ErrWouldBlock if there is none, and
// net.ErrClosed after Close.
func (l *ownedListener) take() (*conn, error) {
	l.s.mu.RLock()
	defer l.s.mu.RUnlock()
	for {
		if l.s.closed {
			return nil, net.ErrClosed
		}
		var from unix.RawSockaddrInet6 // the longest of the possible addresses
		size := uint32(unix.SizeofSockaddrInet6)
		n, _, err := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(l.s.fd), uintptr(unsafe.Pointer(&from)),
			uintptr(unsafe.Pointer(&size)),
			unix.SOCK_CLOEXEC, 0, 0)
		switch err {
		case 0:
		case unix.EAGAIN:
			return nil, ErrWouldBlock
		case unix.EINTR, unix.ECONNABORTED: // the connection ended before it was accepted
			continue
		default:
			return nil, os.NewSyscallError("accept4", err)
		}
		fd := int(n)
		o := &conn{s: &Socket{carrier: carrier{fd: fd}}, local: l.addr, remote: rawAddr(&from), tuned: &l.tuning}
		if l.addr.IP.IsUnspecified() {
			if sa, err := unix.Getsockname(fd); err == nil {
				o.local = tcpAddr(sa)
			}
		}
		if l.meet != nil {
			l.meet.add(o)
		} else if !Shares(l.tuning.SameHost) {
			o.s.why = WhyOff
		}
		return o, nil
	}
}

// rawAddr converts a kernel address of either family. Both families have the port at the same
// offset.
func rawAddr(r *unix.RawSockaddrInet6) net.Addr {
	p := (*[2]byte)(unsafe.Pointer(&r.Port))
	port := int(p[0])<<8 | int(p[1])
	if r.Family == unix.AF_INET {
		return tcpAddr(&unix.SockaddrInet4{Port: port, Addr: (*unix.RawSockaddrInet4)(unsafe.Pointer(r)).Addr})
	}
	return tcpAddr(&unix.SockaddrInet6{Port: port, Addr: r.Addr, ZoneId: r.Scope_id})
}

func tcpAddr(sa unix.Sockaddr) net.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.ZoneId != 0 {
			if ifi, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a = a.WithZone(ifi.Name)
			}
		}
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, uint16(sa.Port)))
	}
	return &net.TCPAddr{}
}
