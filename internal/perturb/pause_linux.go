//go:build perturb

package perturb

import (
	"time"

	"golang.org/x/sys/unix"
)

// pause stops the thread for d of real time, because time.Sleep would follow the clock of a
// synctest bubble.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
