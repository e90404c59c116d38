//go:build !linux

package frameio

import (
	"errors"
	"fmt"
	"net"
)

func setCongestion(_ *net.TCPConn, name string) error {
	return fmt.Errorf("frameio: congestion control %q: %w", name, errors.ErrUnsupported)
}
