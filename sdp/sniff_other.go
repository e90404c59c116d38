//go:build !linux

package sdp

import (
	"context"
	"net"
	"time"
)

// sniff looks at the first bytes of a connection, at most n, without taking them,
// until enough says that they tell.
func sniff(ctx context.Context, nc net.Conn, n int, enough func([]byte) bool, late time.Time) ([]byte, error) {
	return sniffWrapped(ctx, nc, n, enough, late)
}
