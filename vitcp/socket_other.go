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

// maxSegmentSize returns 0, because the system does not report the size.
func maxSegmentSize(net.Conn) int { return 0 }

// hungUp returns false, because the system can't check without waiting. The first use of the
// connection detects the end.
func hungUp(net.Conn) (ended, sent bool) { return false, false }

func latePort(string, string, syscall.RawConn) error { return nil }
