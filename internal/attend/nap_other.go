//go:build !linux

package attend

import "time"

// CanNap reports whether Nap can sleep.
const CanNap = false

// Nap does nothing on this system.
func Nap(time.Duration) {}

func nap(time.Duration) {}
