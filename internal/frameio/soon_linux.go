package frameio

import (
	"io"
	"net"
	"syscall"
)

// readSoon does it for a stream that has a descriptor; ok is false if nc has
// none.
func readSoon(nc net.Conn, p []byte, peek bool) (n int, err error, ok bool) {
	read := sysRead
	if peek {
		read = sysLook
	}
	if o, ok := nc.(*owned); ok {
		n, err = o.receive(p, read, true)
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
		n, err = read(int(fd), p)
		return err != errWouldBlock
	})
	switch {
	case rerr != nil:
		return 0, rerr, true
	case n == 0 && err == nil:
		err = io.EOF
	}
	return max(n, 0), err, true
}
