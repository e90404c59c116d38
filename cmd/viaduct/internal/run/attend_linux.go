//go:build linux && (amd64 || arm64)

package run

import (
	"runtime"
	"sync/atomic"
	"time"

	"viaduct/internal/notify"
)

// Calls are answered in sequence. An answer may access the program's memory. The access can block
// for any time if the memory belongs to a file system in user space or to userfaultfd, because the
// program that provides the pages may itself be waiting for an answer. Therefore, if a call takes
// longer than attendFor, another goroutine receives the next calls.
const attendFor = time.Second

// An attendant is a goroutine that receives and answers calls until attend relieves it.
type attendant struct {
	since   atomic.Int64  // start of the current call in ns since 1970; 0 without a call, relieved after relieve
	watched atomic.Bool   // attend checks since at every tick; if unset, the next call wakes attend
	wake    chan struct{} // one slot; a new call wakes attend
}

const relieved = -1

// attend answers calls until receive fails, and returns the error of receive. It starts another
// attendant whenever the current attendant is blocked in a call. While there are no calls, no timer
// runs.
func attend(receive func() (*notify.Call, error), serve func(*notify.Call)) error {
	over := make(chan error, 1)
	start := func() *attendant {
		a := &attendant{wake: make(chan struct{}, 1)}
		go func() { a.run(receive, serve, over) }()
		return a
	}
	a := start()
	t := time.NewTicker(attendFor / 4)
	defer t.Stop()
	for {
		select {
		case err := <-over:
			return err
		case <-a.wake:
			t.Reset(attendFor / 4)
		case now := <-t.C:
			switch {
			case a.relieve(now):
				a = start()
			case a.idle():
				t.Stop()
			}
		}
	}
}

func (a *attendant) run(receive func() (*notify.Call, error), serve func(*notify.Call), over chan<- error) {
	runtime.LockOSThread()
	for {
		c, err := receive()
		if err != nil {
			over <- err
			return
		}
		began := time.Now().UnixNano()
		a.since.Store(began)
		if !a.watched.Load() {
			a.watched.Store(true)
			select {
			case a.wake <- struct{}{}:
			default:
			}
		}
		serve(c)
		if !a.since.CompareAndSwap(began, 0) {
			return
		}
	}
}

// relieve reports whether the current call takes too long. If so, the attendant receives no further
// calls.
func (a *attendant) relieve(now time.Time) bool {
	since := a.since.Load()
	return since > 0 && now.UnixNano()-since > int64(attendFor) && a.since.CompareAndSwap(since, relieved)
}

// idle reports whether there is no call. If so, the next call wakes attend.
func (a *attendant) idle() bool {
	a.watched.Store(false)
	return a.since.Load() == 0
}
