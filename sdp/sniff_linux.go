package sdp

import (
	"context"
	"io"
	"net"
	"time"

	"viaduct/internal/frameio"
)

// sniff looks at the first bytes of a connection, at most n, without taking them,
// until enough says that they tell.
func sniff(ctx context.Context, nc net.Conn, n int, enough func([]byte) bool, limit time.Duration) ([]byte, error) {
	stop := bound(ctx, nc, limit)
	defer stop()
	b := make([]byte, n)
	late := time.Now().Add(limit)
	for {
		k, err, ok := frameio.PeekSoon(nc, b)
		if !ok {
			return sniffWrapped(ctx, nc, n, enough, limit)
		}
		switch {
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
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
