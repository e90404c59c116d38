//go:build linux && (amd64 || arm64)

package run

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// outOfDescriptors reports whether this process, or the system, has none left.
func outOfDescriptors(err error) bool { return err == unix.EMFILE || err == unix.ENFILE }

// A spare keeps descriptors for calls that have to be answered when no other is left:
// for a thread of the program, for its socket, and for a connection that it accepts.
type spare struct {
	// lent says that a call is being served by them. What becomes free then is that
	// call's: arrivals get none of it.
	lent atomic.Bool

	mu  sync.Mutex
	fds []int // guarded by mu
}

const (
	spares    = 3
	spareTime = time.Second // that a call waits for spare descriptors
)

// whole reports whether all spare descriptors are there. While they are not no
// further connection is carried.
func (s *spare) whole() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fillLocked()
}

func (s *spare) fillLocked() bool {
	for len(s.fds) < spares {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return false
		}
		s.fds = append(s.fds, fd)
	}
	return true
}

// use calls f with the spare descriptors free until it reports success, for a limited
// time: another goroutine may have taken what became free.
func (s *spare) use(f func() bool) {
	until := time.Now().Add(spareTime)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent.Store(true)
	defer s.lent.Store(false)
	defer s.fillLocked()
	for ; ; time.Sleep(time.Millisecond) {
		for _, fd := range s.fds {
			unix.Close(fd)
		}
		s.fds = s.fds[:0]
		if f() || time.Now().After(until) {
			return
		}
	}
}
