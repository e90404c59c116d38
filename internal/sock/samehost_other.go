//go:build !linux

package sock

import (
	"context"
	"errors"
	"net"

	"viaduct/samehost"
)

// ShareMemory does nothing on this system.
func ShareMemory(_ context.Context, _ net.Conn, policy samehost.Policy, _ string) error {
	if policy == samehost.Require {
		return &net.OpError{Op: "dial", Net: "shm", Err: errors.New(whyNoPlatform)}
	}
	return nil
}
