package sock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Poll is poll(2), except that a signal does not end it: the call is repeated for the rest of the time.
// That matters even where the timeout is 0. The kernel returns EINTR, and no events, if a signal
// is pending when nothing is ready, and the Go runtime sends signals to its own threads. The
// timeout is in milliseconds. A negative one means for ever.
func Poll(fds []unix.PollFd, timeout int) (n int, err error) {
	end := time.Now().Add(time.Duration(timeout) * time.Millisecond)
	for {
		n, err = unix.Poll(fds, timeout)
		if err != unix.EINTR {
			return n, err
		}
		if timeout > 0 {
			timeout = int(max(time.Until(end)+time.Millisecond-1, 0) / time.Millisecond)
		}
	}
}
