//go:build !linux

package sock

import (
	"context"
	"errors"
	"net"
)

// ShareMemory does nothing on this system.
func ShareMemory(_ context.Context, _ net.Conn, policy SameHost) error {
	if policy == SameHostRequire {
		return &net.OpError{Op: "dial", Net: "shm", Err: errors.New(whyNoPlatform)}
	}
	return nil
}
