//go:build !linux

package sock

import (
	"context"
	"errors"
	"net"

	"viaduct/samehost"
)

// ShareMemory returns an error if policy is samehost.Require, because the system has no shared
// memory. With any other policy ShareMemory does nothing.
func ShareMemory(_ context.Context, _ net.Conn, policy samehost.Policy, _ string) error {
	if policy == samehost.Require {
		return &net.OpError{Op: "dial", Net: "shm", Err: errors.New(whyNoPlatform)}
	}
	return nil
}
