//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
)

// openThread returns a pidfd of a thread. Kernels before 6.9 have pidfds only for processes. On
// older kernels openThread returns the pidfd of the process. That suffices, because only the
// descriptor table is needed.
func openThread(tid int) (int, error) {
	fd, err := unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if err == unix.EINVAL {
		if fd, err = unix.PidfdOpen(tid, 0); err == unix.EINVAL || err == unix.ENOENT {
			var tgid int
			if tgid, err = processOf(tid); err == nil {
				fd, err = unix.PidfdOpen(tgid, 0)
			}
		}
	}
	if err == unix.ESRCH {
		err = ErrGone
	}
	return fd, err
}

// processOf returns the process ID of a thread, or ErrGone if the thread has ended.
func processOf(tid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if e, ok := errors.AsType[unix.Errno](err); ok && e != unix.ENOENT && e != unix.ESRCH {
		return 0, e // for example because no descriptor is free; that does not mean that the thread has ended
	}
	if err != nil {
		return 0, ErrGone
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("Tgid:")); ok {
			return strconv.Atoi(string(bytes.TrimSpace(v)))
		}
	}
	return 0, ErrGone
}

// maxThreads is the maximum number of cached pidfds.
const maxThreads = 64

// threads caches pidfds by thread ID. If the ID of an ended thread is in use again, the old pidfd
// returns ESRCH, because a pidfd always stands for the same thread.
type threads struct {
	mu sync.Mutex
	m  map[int]*thread // guarded by mu
}

type thread struct {
	fd   int
	uses int  // guarded by threads.mu
	gone bool // guarded by threads.mu: th was removed from the map
}

func (t *threads) borrow(c *Call, fd int) (int, error) {
	for try := 0; ; try++ {
		th, fresh, err := t.get(c)
		if err != nil {
			return -1, err
		}
		got, err := unix.PidfdGetfd(th.fd, fd, 0)
		t.put(c.TID, th, err == unix.ESRCH)
		if err == unix.ESRCH {
			if !fresh && try < 2 {
				continue
			}
			err = ErrGone
		}
		if err != nil {
			return -1, err
		}
		return got, nil
	}
}

// get returns the cached pidfd of a call's thread, or opens one. fresh is true if get opened the
// pidfd. The pidfd stays open until put.
func (t *threads) get(c *Call) (th *thread, fresh bool, err error) {
	t.mu.Lock()
	if th := t.m[c.TID]; th != nil {
		th.uses++
		t.mu.Unlock()
		return th, false, nil
	}
	t.mu.Unlock()
	fd, err := c.OpenThread()
	if err == unix.EMFILE {
		t.drop() // release cached descriptors
		fd, err = c.OpenThread()
	}
	if err != nil {
		return nil, false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.m[c.TID]; old != nil {
		t.removeLocked(c.TID, old)
	}
	t.sweepLocked()
	if len(t.m) >= maxThreads {
		for tid, th := range t.m {
			t.removeLocked(tid, th)
		}
	}
	if t.m == nil {
		t.m = map[int]*thread{}
	}
	th = &thread{fd: fd, uses: 1}
	t.m[c.TID] = th
	return th, true, nil
}

func (t *threads) put(tid int, th *thread, dead bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	th.uses--
	if dead && !th.gone {
		t.removeLocked(tid, th)
	} else if th.gone && th.uses == 0 {
		unix.Close(th.fd)
	}
}

func (t *threads) removeLocked(tid int, th *thread) {
	delete(t.m, tid)
	th.gone = true
	if th.uses == 0 {
		unix.Close(th.fd)
	}
}

// sweepLocked removes ended threads from the cache.
func (t *threads) sweepLocked() {
	polls := make([]unix.PollFd, 0, len(t.m))
	tids := make([]int, 0, len(t.m))
	for tid, th := range t.m {
		polls, tids = append(polls, unix.PollFd{Fd: int32(th.fd), Events: unix.POLLIN}), append(tids, tid)
	}
	if n, err := sock.Poll(polls, 0); err != nil || n == 0 {
		return
	}
	for i, p := range polls {
		if p.Revents != 0 {
			t.removeLocked(tids[i], t.m[tids[i]])
		}
	}
}

// drop empties the cache.
func (t *threads) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tid, th := range t.m {
		t.removeLocked(tid, th)
	}
}

// withoutSignals runs f with all signals of the thread blocked.
func withoutSignals(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, &old); err != nil {
		return err
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	return f()
}
