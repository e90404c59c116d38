package sdp

import (
	"context"
	"io"
	"net"
	"time"

	"viaduct/internal/sock"
)

// sniff returns the first bytes of a connection, at most n, without consuming them. sniff waits
// until enough returns true or n bytes have arrived.
func sniff(ctx context.Context, nc net.Conn, n int, enough func([]byte) bool, late time.Time) ([]byte, error) {
	stop := bound(ctx, nc, late)
	defer stop()
	b := make([]byte, n)
	for have := 0; ; {
		// The peer may send its first bytes one by one. Sleep until more arrive, or the stream has
		// ended. [SDP-8.1.2-1]
		k, err, ok := sock.PeekSoon(nc, b, have)
		switch {
		case !ok:
			return sniffWrapped(ctx, nc, n, enough, late)
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case k >= n || enough(b[:k]):
			return b[:k], nil
		}
		have = k
	}
}
