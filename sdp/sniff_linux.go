package sdp

import (
	"context"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/frameio"
)

// sniff looks at the first bytes of a connection, at most n, without taking them,
// until enough says that they tell.
func sniff(ctx context.Context, nc net.Conn, n int, enough func([]byte) bool, limit time.Duration) ([]byte, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return sniffWrapped(ctx, nc, n, enough, limit)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	stop := bound(ctx, nc, limit)
	defer stop()
	b := make([]byte, n)
	late := time.Now().Add(limit)
	for {
		var k int
		var rerr error
		err := frameio.WaitSoon(raw, func(fd uintptr) bool {
			k, _, rerr = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return rerr != unix.EAGAIN && rerr != unix.EINTR
		})
		switch {
		case err != nil:
			return nil, err
		case rerr != nil:
			return nil, rerr
		case k == 0:
			return nil, io.ErrUnexpectedEOF
		case k >= n || enough(b[:k]):
			return b[:k], nil
		case time.Now().After(late):
			return nil, errDeadline
		}
		// A peer that sends its first bytes one by one: the socket is readable
		// all the time, so wait a little.
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
