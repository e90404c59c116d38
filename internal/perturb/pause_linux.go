//go:build perturb

package perturb

import (
	"time"

	"golang.org/x/sys/unix"
)

// pause keeps the thread for d of real time: time.Sleep would follow the clock
// of a synctest bubble.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
