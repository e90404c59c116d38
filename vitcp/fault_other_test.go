//go:build !linux

package vitcp

import (
	"io"
	"net"

	"viaduct/vi"
)

// cut is nil on this system, so the tests that need it are skipped.
var cut func(*vi.VI)

func readSpinning(c net.Conn, buf []byte) error {
	_, err := io.ReadFull(c, buf)
	return err
}
