//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync/atomic"
	"time"
)

const (
	// sweepEvery is the time between sweeps during activity. A peer may notice the end of a program
	// that much later.
	sweepEvery = 50 * time.Millisecond
	// restAfter is the number of sweeps after the last activity. The kernel reports a close a
	// little before the file is dropped, and the drop may take long on a busy machine.
	restAfter = 20
	// sweepAtRest is how often the sweeper of a service sweeps at rest nevertheless.
	sweepAtRest = 10 * time.Second
)

// A sweeper calls a function periodically while programs do something, and rests while they do not,
// so that an idle device uses no processor time.
type sweeper struct {
	wake     chan struct{} // one slot
	atRest   time.Duration // how often a resting sweeper sweeps
	active   atomic.Bool   // there was activity since the last sweep
	restless atomic.Bool   // not all activity is reported, so that the sweeper must not rest
}

func newSweeper() *sweeper { return &sweeper{wake: make(chan struct{}, 1), atRest: sweepAtRest} }

// note reports activity: a call of a program, or a close.
func (w *sweeper) note() {
	if w.active.Load() || w.active.Swap(true) {
		return // already reported
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run calls sweep until stop is closed.
func (w *sweeper) run(stop <-chan struct{}, sweep func()) {
	t := time.NewTimer(sweepEvery)
	defer t.Stop()
	for quiet := 0; ; {
		wait, wake := sweepEvery, (chan struct{})(nil)
		if quiet >= restAfter && !w.restless.Load() {
			wait, wake = w.atRest, w.wake
		}
		t.Reset(wait)
		select {
		case <-stop:
			return
		case <-t.C:
		case <-wake:
		}
		if quiet++; w.active.Swap(false) {
			quiet = 0
		}
		sweep()
	}
}

// startSweeper starts a goroutine in which sweeper calls Sweep until the service ends.
func (s *Service) startSweeper(sweeper *sweeper) {
	s.sweeper = sweeper
	w, err := newCloseWatch()
	if err != nil {
		s.log.Debug("closed files are looked for all the time", "err", err)
		sweeper.restless.Store(true)
	} else {
		s.closes = w
		s.wg.Go(func() { w.notify(sweeper.note) })
		s.wg.Go(func() {
			<-s.done
			w.stop()
		})
	}
	s.wg.Go(func() { sweeper.run(s.done, s.Sweep) })
}

// watchFile reports closes of a memfd to the sweeper until unwatch is called. If the kernel gives
// no watch, unwatch is nil.
func (s *Service) watchFile(fd int) (unwatch func()) {
	if s.closes == nil {
		return nil
	}
	unwatch, err := s.closes.addFile(fd)
	if err != nil {
		s.sweeper.restless.Store(true)
	}
	return unwatch
}

// watchPipe reports the end of a pipe's readers to the sweeper. fd is the writing end.
func (s *Service) watchPipe(fd int) {
	if s.closes != nil && s.closes.addPipe(fd) != nil {
		s.sweeper.restless.Store(true)
	}
}
