//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package registry

import (
	"context"
	"errors"
	"fmt"
)

// lockFile returns an error, because this system has no lock ending with the process.
func lockFile(_ context.Context, path string) (unlock func(), err error) {
	return nil, fmt.Errorf("%w: lock %s: %w on this system: add a line to the file by hand",
		ErrReadOnly, path, errors.ErrUnsupported)
}
