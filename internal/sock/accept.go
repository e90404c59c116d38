package sock

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// AcceptNext calls accept, the method of a listener, until it returns a connection. After an error
// that may pass it waits, from 5 ms to a second, and tries again: the process or the system has no
// free descriptor or no memory, or the connection ended in the queue. Other errors are returned, and
// net.ErrClosed once stop is closed.
func AcceptNext[C any](accept func() (C, error), stop <-chan struct{}) (C, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		c, err := accept()
		if err == nil || !mayPass(err) {
			return c, err
		}
		select {
		case <-time.After(pause):
		case <-stop:
			return c, net.ErrClosed
		}
	}
}

// mayPass reports whether a later accept may succeed.
func mayPass(err error) bool {
	if t, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err); ok && t.Temporary() {
		return true
	}
	for _, e := range []error{syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
