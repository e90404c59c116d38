package verbs

import (
	"errors"
	"syscall"
)

// isNotConnected reports that the other side ended both directions before we
// ended ours, which is no failure of the data.
func isNotConnected(err error) bool { return errors.Is(err, syscall.ENOTCONN) }
