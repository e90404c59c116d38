package attend

import (
	"time"

	"golang.org/x/sys/unix"
)

// files are the descriptors a Sleeper waits for: a timer, which stays open, and sockets. The timer
// continues from sleep to sleep, because setting a timer costs more than all other work of a short
// sleep.
type files struct {
	opened bool
	n      int
	fds    [1 + MaxSockets]unix.PollFd
}

// open creates the timer if there is none. It returns false on failure.
func (f *files) open() bool {
	if f.opened {
		return true
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return false
	}
	f.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	f.opened = true
	return true
}

func (f *files) clear() { f.n = 1 }

// set makes the timer fire after d.
func (f *files) set(d time.Duration) {
	_ = unix.TimerfdSettime(int(f.fds[0].Fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
}

// Add adds socket fd to the sockets that wake the Sleeper. It returns false if there is no room.
func (f *files) Add(fd int) bool {
	if f.n == len(f.fds) {
		return false
	}
	f.fds[f.n] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
	f.n++
	return true
}

func (f *files) wait() (o Outcome, fired bool) {
	f.fds[0].Revents = 0
	n, err := unix.Ppoll(f.fds[:f.n], nil, nil)
	switch {
	case err != nil:
		return Woken, false
	case f.fds[0].Revents != 0:
		var b [8]byte
		_, _ = unix.Read(int(f.fds[0].Fd), b[:])
		if n == 1 {
			return Paused, true
		}
		return Arrived, true
	}
	return Arrived, false
}
