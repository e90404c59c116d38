//go:build !linux

package vitcp

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

func setUserTimeout(net.Conn, time.Duration) error {
	return fmt.Errorf("vitcp: user timeout: %w", errors.ErrUnsupported)
}

// maxSegmentSize cannot be told here.
func maxSegmentSize(net.Conn) int { return 0 }

// hungUp cannot be told here without waiting; the first use of the connection
// will.
func hungUp(net.Conn) (ended, sent bool) { return false, false }

func latePort(string, string, syscall.RawConn) error { return nil }
