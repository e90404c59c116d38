//go:build !linux

package iwarp

import (
	"net"
	"testing"
)

func limitMSS(net.Conn, int) bool { return false }

func withMSS(t *testing.T, _ int) (*peer, *QueuePair) {
	t.Skip("the system has no way to lower the MSS of a connection")
	return nil, nil
}
