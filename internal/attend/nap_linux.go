package attend

import (
	"time"

	"golang.org/x/sys/unix"
)

// CanNap tells whether Nap sleeps at all.
const CanNap = true

// Nap sleeps for less time than the runtime's timers can tell apart, and without
// the 50 us that the system adds to gather its interrupts. It keeps the thread;
// another takes the processor over if there is something to do.
func Nap(d time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // of this thread, for good
	nap(d)
}

// nap is Nap with whatever the system adds.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
