//go:build !linux

package sock

import (
	"errors"
	"fmt"
	"net"
)

func setCongestion(_ *net.TCPConn, name string) error {
	return fmt.Errorf("sock: congestion control %q: %w", name, errors.ErrUnsupported)
}
