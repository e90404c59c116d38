//go:build !linux

package attend

import "time"

// CanNap tells whether Nap sleeps at all.
const CanNap = false

// Nap does nothing on this system.
func Nap(time.Duration) {}

func nap(time.Duration) {}
