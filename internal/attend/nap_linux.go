package attend

import (
	"time"

	"golang.org/x/sys/unix"
)

// CanNap reports whether Nap can sleep.
const CanNap = true

// Nap sleeps for d, which may be shorter than the resolution of the runtime's timers. Nap removes
// the thread's timer slack, because the slack would prolong the sleep by 50 us. The sleep occupies
// the thread; another thread may use the processor meanwhile.
func Nap(d time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // changes this thread permanently
	nap(d)
}

// nap sleeps for d, plus the thread's timer slack.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
