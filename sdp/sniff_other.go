//go:build !linux

package sdp

import (
	"context"
	"net"
	"time"
)

// sniff returns the first bytes of a connection, at most n, without consuming them. sniff waits
// until enough returns true or n bytes have arrived.
func sniff(ctx context.Context, nc net.Conn, n int, enough func([]byte) bool, late time.Time) ([]byte, error) {
	return sniffWrapped(ctx, nc, n, enough, late)
}
