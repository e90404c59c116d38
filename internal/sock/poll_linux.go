package sock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Poll is poll(2), but continues after a signal, for the rest of the timeout. Signals matter even
// for a timeout of 0: if no descriptor is ready and a signal is pending, the kernel returns EINTR,
// and the Go runtime sends signals to the process's own threads. The timeout is in milliseconds; a
// negative timeout means no limit.
func Poll(fds []unix.PollFd, timeout int) (n int, err error) {
	var end time.Time
	if timeout > 0 {
		end = time.Now().Add(time.Duration(timeout) * time.Millisecond)
	}
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
