//go:build linux && (amd64 || arm64)

package run

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// outOfDescriptors reports whether this process, or the system, has no free descriptors.
func outOfDescriptors(err error) bool { return err == unix.EMFILE || err == unix.ENFILE }

// A spare reserves descriptors for calls to be answered when no others are free: for a thread of
// the program, for a socket of the program, and for an accepted connection.
type spare struct {
	// lent is set while a call uses the spare descriptors. Newly free descriptors then belong to
	// the call, and not to arrivals.
	lent atomic.Bool

	mu  sync.Mutex
	fds []int // guarded by mu
}

const (
	spares    = 3
	spareTime = time.Second // how long a call waits for spare descriptors
)

// whole reports whether all spare descriptors are open. Otherwise no further connection is carried.
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

// use frees the spare descriptors and calls f until f reports success, for a limited time, because
// another goroutine may have taken a freed descriptor.
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
