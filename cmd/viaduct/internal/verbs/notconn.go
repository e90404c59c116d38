package verbs

import (
	"errors"
	"syscall"
)

// isNotConnected reports whether the other side ended both directions before we ended ours. No data
// was lost then.
func isNotConnected(err error) bool { return errors.Is(err, syscall.ENOTCONN) }
