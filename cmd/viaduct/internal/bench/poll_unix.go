//go:build unix

package bench

import (
	"context"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A socketReader calls read on the non-blocking socket until there are bytes, as a polling C
// program does.
type socketReader struct {
	rc syscall.RawConn
	c  net.Conn
}

func newRawReader(c net.Conn) rawReader {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return &socketReader{rc, c}
}

func (r *socketReader) readFull(ctx context.Context, b []byte) (n int, err error) {
	for i := 0; n < len(b) && err == nil; i++ {
		if i&0xfff == 0xfff && ctx.Err() != nil {
			return n, ctx.Err()
		}
		rerr := r.rc.Control(func(fd uintptr) {
			k, e := unix.Read(int(fd), b[n:])
			switch {
			case e == unix.EAGAIN || e == unix.EINTR:
			case e != nil:
				err = e
			case k == 0:
				err = io.EOF
			default:
				n += k
			}
		})
		if rerr != nil {
			return n, rerr
		}
	}
	return n, err
}
