//go:build perturb && !linux

package perturb

import "time"

// pause sleeps for d.
func pause(d time.Duration) { time.Sleep(d) }
