package sock

import (
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeekSoon is like ReadSoon, but leaves the bytes unread. PeekSoon waits until more than have bytes
// are available; have is less than len(p). So a caller with some bytes already seen sleeps until
// others arrive. The error is io.EOF if the stream ends with at most have bytes. ok is false if nc
// gives no access to its descriptor.
func PeekSoon(nc net.Conn, p []byte, have int) (n int, err error, ok bool) {
	if have == 0 {
		return readSoon(nc, p, reading{peek, func(r *rings, p []byte) (int, error) { return r.peekAt(0, p) }})
	}
	done, err, ok := wakeAbove(nc, have)
	if !ok || err != nil {
		return 0, err, ok
	}
	defer done()
	return readSoon(nc, p, reading{
		func(fd int, p []byte) (int, error) { return peekAbove(fd, p, have) },
		func(r *rings, p []byte) (int, error) { return r.peekAbove(p, have) },
	})
}

// readSoon is ReadSoon with call as the read function. ok is false if call cannot be used on nc.
func readSoon(nc net.Conn, p []byte, call reading) (n int, err error, ok bool) {
	if o, ok := nc.(*conn); ok {
		n, err = o.receive(p, call, true)
		return n, err, true
	}
	sc, ok := nc.(syscall.Conn)
	if !ok || len(p) == 0 {
		return 0, nil, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, nil, false
	}
	rerr := waitSoon(raw, func(fd uintptr) bool {
		n, err = call.socket(int(fd), p)
		return err != ErrWouldBlock
	})
	switch {
	case rerr != nil:
		return 0, rerr, true
	case n == 0 && err == nil:
		err = io.EOF
	}
	return max(n, 0), err, true
}

// wakeAbove ensures, until done is called, that a goroutine asleep on nc is woken only when more
// than have bytes are available or the stream has ended. ok is false if nc gives no access to its
// descriptor.
func wakeAbove(nc net.Conn, have int) (done func(), err error, ok bool) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, nil, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err, true
	}
	set := func(n int) (err error) {
		if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) }); cerr != nil {
			return cerr
		}
		return os.NewSyscallError("setsockopt", err)
	}
	if err := set(have + 1); err != nil {
		return nil, err, true
	}
	return func() { _ = set(1) }, nil, true
}

// peekAbove is peek, but returns ErrWouldBlock if at most have bytes are available and more can
// follow. If the stream ends after the available bytes, the result is 0 without an error.
func peekAbove(fd int, p []byte, have int) (int, error) {
	n, err := peek(fd, p)
	if err != nil || n == 0 || n > have {
		return n, err
	}
	events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if k, err := Poll(events, 0); err == nil && k > 0 {
		if n, err := peek(fd, p); err != nil || n > have {
			return n, err // the bytes arrived before the end
		}
		return 0, nil
	}
	return 0, ErrWouldBlock
}
