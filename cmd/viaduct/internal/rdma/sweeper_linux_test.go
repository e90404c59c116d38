//go:build linux && (amd64 || arm64)

package rdma

import (
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// A sweeper rests a second after the last activity, and sweeps at once after new activity. It never
// rests if not all activity is reported.
func TestSweeperRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		defer close(stop)
		var sweeps atomic.Int32
		w := newSweeper()
		go w.run(stop, func() { sweeps.Add(1) })
		in := func(d time.Duration) int {
			before := sweeps.Load()
			time.Sleep(d)
			synctest.Wait()
			return int(sweeps.Load() - before)
		}
		if n := in(sweepEvery * restAfter); n < restAfter-1 {
			t.Errorf("%d sweeps of a service that has just begun, want %d", n, restAfter)
		}
		in(sweepAtRest)
		if n := in(sweepAtRest); n > 1 {
			t.Errorf("%d sweeps at rest within %v", n, sweepAtRest)
		}
		w.note()
		if n := in(time.Millisecond); n != 1 {
			t.Errorf("%d sweeps at once after activity, want 1", n)
		}
		if n := in(sweepEvery * restAfter); n < restAfter-1 {
			t.Errorf("%d sweeps after activity, want %d", n, restAfter)
		}
		for range 100 { // activity that does not end
			w.note()
			if n := in(sweepEvery); n < 1 {
				t.Fatal("no sweep while there is activity")
			}
		}
		w.restless.Store(true)
		if n := in(10 * time.Second); n < 190 {
			t.Errorf("%d sweeps in 10 s without reports, want 200", n)
		}
	})
}

// TestCloseReportLate: a report that epoll did not know yet, but that take removes, counts.
func TestCloseReportLate(t *testing.T) {
	w, err := newCloseWatch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	defer w.stop()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.addFile(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	c, err := w.pipes.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c.Control(func(epoll uintptr) {
		if err := unix.EpollCtl(int(epoll), unix.EPOLL_CTL_DEL, w.files, nil); err != nil {
			t.Fatal(err)
		}
		if w.take(epoll) {
			t.Error("a report before the close")
		}
		f.Close()
		if !w.take(epoll) {
			t.Error("no report after the close")
		}
	})
}

// The kernel reports that a program has closed its stand-ins, and later the unmapping of a closed
// stand-in's rings.
func TestCloseWatch(t *testing.T) {
	w, err := newCloseWatch()
	if err != nil {
		t.Fatal(err)
	}
	reports, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		w.notify(func() { reports <- struct{}{} })
		close(ended)
	}()
	defer w.close()
	defer func() { w.stop(); <-ended }()
	told := func(what string) {
		t.Helper()
		select {
		case <-reports:
		case <-time.After(time.Minute):
			t.Fatal("no report of " + what)
		}
	}
	a, theirs, err := newArena(&ringQuota{most: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if _, _, err := a.ring(pageSize); err != nil {
		t.Fatal(err)
	}
	unwatch, err := w.addFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := unix.Mmap(theirs, 0, pageSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(theirs)
	if len(reports) > 0 || a.orphaned() {
		t.Error("a stand-in that is mapped counts as closed")
	}
	unix.Munmap(ring)
	told("a file")
	unwatch()

	for range 2 {
		r, p, err := newPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.addPipe(p); err != nil {
			t.Fatal(err)
		}
		unix.Write(p, []byte{1}) // which shows nothing
		unix.Close(r)
		told("a pipe")
		if !withoutReader(p) {
			t.Error("the pipe has a reader still")
		}
		unix.Close(p)
	}
}

// At rest a service notices that a stand-in was closed, long before it would sweep again.
func TestSweepAfterRest(t *testing.T) {
	s := &Service{done: make(chan struct{}), files: map[inode]file{}, log: slog.New(slog.DiscardHandler)}
	w := newSweeper()
	w.atRest = time.Hour
	s.startSweeper(w)
	defer func() {
		close(s.done)
		s.wg.Wait()
		if s.closes != nil {
			s.closes.close()
		}
	}()
	if s.closes == nil {
		t.Skip("SKIPPED: the kernel gives this user no more instances of inotify")
	}
	time.Sleep(sweepEvery * (restAfter + 2))
	r, p, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	id, err := inodeOf(r)
	if err != nil {
		t.Fatal(err)
	}
	s.watchPipe(p)
	s.add(id, &cmFile{s: s, w: p})
	unix.Close(r)
	testkit.Eventually(t, "the release of the file", func() bool { return s.file(id) == nil })
}
