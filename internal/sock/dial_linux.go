package sock

import (
	"context"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Dial is like d.DialContext followed by [Own]. It makes the system calls itself, without package
// net, if address is numeric and d has no field set but Timeout.
func Dial(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !isPlainDialer(d) || !isPlainTarget(network, ap) {
		return dialOwn(ctx, d, network, address)
	}
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	if ctx.Err() != nil {
		return dialOwn(ctx, d, network, address) // package net produces the error
	}
	o := &conn{s: new(Socket), remote: net.TCPAddrFromAddrPort(ap)}
	err = o.connect(ctx, ap)
	if err == nil && addrPort(o.local) == ap {
		// The system chose the dialled port as the local port, and TCP connected the socket to itself.
		o.Close()
		return dialOwn(ctx, d, network, address)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: o.remote, Err: err}
	}
	return o, nil
}

func dialOwn(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return Own(nc), nil
}

func isPlainDialer(d *net.Dialer) bool {
	return d.LocalAddr == nil && d.Control == nil && d.ControlContext == nil && d.Deadline.IsZero() &&
		d.Cancel == nil && //lint:ignore SA1019 a Dialer that has Cancel is not plain
		d.KeepAlive == 0 && d.KeepAliveConfig == (net.KeepAliveConfig{}) && !d.MultipathTCP()
}

func isPlainTarget(network string, ap netip.AddrPort) bool {
	a := ap.Addr()
	if a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || ap.Port() == 0 {
		return false
	}
	return network == "tcp" || network == "tcp4" && a.Is4() || network == "tcp6" && a.Is6()
}

// connect creates the socket of o, and connects to ap.
func (o *conn) connect(ctx context.Context, ap netip.AddrPort) (err error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(ap.Port())})
	if a := ap.Addr(); a.Is4() {
		sa.(*unix.SockaddrInet4).Addr = a.As4()
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(ap.Port()), Addr: a.As16()}
	}
	const kind = unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	fd, err := unix.Socket(family, kind, unix.IPPROTO_TCP)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	o.s.fd = fd
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	if err := o.awaitConnect(ctx, sa); err != nil {
		return err
	}
	o.later.Store(&Tuning{})
	var local unix.RawSockaddrInet6
	size := uint32(unix.SizeofSockaddrInet6)
	if _, _, e := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&local)), uintptr(unsafe.Pointer(&size))); e != 0 {
		return os.NewSyscallError("getsockname", e)
	}
	o.local = rawAddr(&local)
	return nil
}

// awaitConnect calls connect(2) for sa until the handshake is done. Within a host the second call
// already finds the socket connected. The error is an error of connect(2), or the cause of ctx's
// end.
func (o *conn) awaitConnect(ctx context.Context, sa unix.Sockaddr) error {
	connected := func() (done bool, err error) {
		switch err := unix.Connect(o.s.fd, sa); err {
		case nil, unix.EISCONN:
			return true, nil
		case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
			return false, nil
		default:
			return false, os.NewSyscallError("connect", err)
		}
	}
	for range 2 {
		if done, err := connected(); done || err != nil {
			return err
		}
	}
	if at, ok := ctx.Deadline(); ok {
		o.SetWriteDeadline(at)
	}
	stop := context.AfterFunc(ctx, func() { o.SetWriteDeadline(time.Unix(1, 0)) })
	done, err := false, error(nil)
	for !done && err == nil {
		if err = o.sleepOut(); err == nil {
			done, err = connected()
		}
	}
	if !stop() {
		return context.Cause(ctx)
	}
	o.SetWriteDeadline(time.Time{})
	return err
}

// netKeepAlive sets the keepalive options of package net, which are the same for dialled and
// accepted connections.
func netKeepAlive(fd int) error {
	if err := keepAlive(fd, 15*time.Second); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9)
}
