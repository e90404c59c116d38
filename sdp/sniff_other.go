//go:build !linux

package sdp

import (
	"context"
	"net"
	"time"
)

// sniff looks at the first n bytes of a connection without taking them.
func sniff(ctx context.Context, nc net.Conn, n int, limit time.Duration) ([]byte, error) {
	return sniffWrapped(ctx, nc, n, limit)
}
