//go:build linux && (amd64 || arm64)

package run

import (
	"runtime"
	"sync/atomic"
	"time"

	"viaduct/internal/notify"
)

// A service answers calls one after the other, and for that reads and writes the memory of programs. Memory of a file
// system in user space, or of userfaultfd, comes when the program that serves it likes, and that program may
// itself wait for its call to be answered. So no call may hold up the others for ever: when one takes longer than
// attendFor, another goroutine receives the calls from there on.
const attendFor = time.Second

// An attendant receives calls and has them answered, until it is relieved.
type attendant struct {
	since atomic.Int64 // when the call in progress was received; 0 without one, relieved after it
}

const relieved = -1

// attend answers calls until receive fails, with as many attendants as are held up, and one more.
func attend(receive func() (*notify.Call, error), serve func(*notify.Call)) error {
	over := make(chan error, 1)
	start := func() *attendant {
		a := &attendant{}
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
		case now := <-t.C:
			if a.relieve(now) {
				a = start()
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
		serve(c)
		if !a.since.CompareAndSwap(began, 0) {
			return
		}
	}
}

// relieve reports whether the call in progress takes too long. The attendant receives no more calls then.
func (a *attendant) relieve(now time.Time) bool {
	since := a.since.Load()
	return since > 0 && now.UnixNano()-since > int64(attendFor) && a.since.CompareAndSwap(since, relieved)
}
