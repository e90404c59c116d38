package sdp

import (
	"time"

	"golang.org/x/sys/unix"
)

const canNap = true

// nap sleeps for less time than the runtime's timers can tell apart, without
// the 50 us that the system adds to a sleep to gather its interrupts.
func nap(d time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
