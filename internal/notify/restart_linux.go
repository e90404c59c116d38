//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A Restarter traces a process, so that the kernel restarts calls that a signal has interrupted,
// whether or not the signal's handler has SA_RESTART. Without a Restarter, a call fails with EINTR
// if the signal arrives before the call is received, and no answer can prevent that.
//
// The threads of the process stop at each signal for about ten microseconds. Nothing else can trace
// the process meanwhile. The process that traces must not be the parent of the traced process,
// because the kernel then reports stops by job control only to the tracer.
type Restarter struct {
	pid   int
	again func(tid int, n Native) bool
	over  atomic.Bool
	done  chan struct{}
}

// NewRestarter traces the process pid until the process has ended or executes another program. It
// calls again with each call that a signal has interrupted, also with calls that were not notified.
// If again returns true, the kernel restarts the call after the signal's handler. The error is
// ErrUnsupported if the processor's interface has no means for this.
func NewRestarter(pid int, again func(tid int, n Native) bool) (*Restarter, error) {
	if !canRestart {
		return nil, errors.ErrUnsupported
	}
	r := &Restarter{pid: pid, again: again, done: make(chan struct{})}
	seized := make(chan error)
	go func() {
		// Linux accepts trace requests only from the thread that attached. The goroutine never
		// unlocks the thread, so the thread ends with it, and the kernel detaches the rest.
		runtime.LockOSThread()
		defer close(r.done)
		err := r.seize()
		seized <- err
		if err == nil {
			r.trace()
		}
	}()
	return r, <-seized
}

// Done is closed when nothing is traced any more.
func (r *Restarter) Done() <-chan struct{} { return r.done }

// Stop ends the tracing. It sends the process SIGCONT, because only a report ends the wait for
// reports.
func (r *Restarter) Stop() {
	r.over.Store(true)
	unix.Kill(r.pid, unix.SIGCONT)
	<-r.done
}

// seize attaches to all threads. A thread that a seized thread creates is attached by the kernel,
// so seize is done when it finds no new thread.
func (r *Restarter) seize() error {
	seized := map[int]bool{}
	for found := true; found; {
		found = false
		tasks, err := os.ReadDir("/proc/" + strconv.Itoa(r.pid) + "/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || seized[tid] {
				continue
			}
			seized[tid], found = true, true
			_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0,
				unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACEEXEC, 0, 0)
			if e != 0 && tid == r.pid {
				return e
			}
		}
	}
	return nil
}

// trace handles the stops of the threads.
func (r *Restarter) trace() {
	for {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || r.over.Load() || tid == r.pid && !ws.Stopped():
			return
		case !ws.Stopped():
			continue
		}
		t := traced{tid}
		switch sig, event := ws.StopSignal(), int(ws)>>16; {
		case event == unix.PTRACE_EVENT_EXEC:
			t.detach(0)
			return
		case event == unix.PTRACE_EVENT_STOP && isStopSignal(sig):
			t.resume(unix.PTRACE_LISTEN, 0) // stopped by job control; SIGCONT is reported
		case event != 0:
			t.resume(unix.PTRACE_CONT, 0)
		default:
			r.restart(tid)
			t.resume(unix.PTRACE_CONT, sig)
		}
	}
}

// restart changes the result of the interrupted call of a thread, stopped at a signal, if again
// wants it.
func (r *Restarter) restart(tid int) {
	var regs registers
	if regs.get(tid) != nil {
		return
	}
	if n, ok := regs.restarting(); ok && r.again(tid, n) {
		regs.restartAlways()
		regs.set(tid)
	}
}

// resume continues a stopped thread by a trace request. An error means that the thread was killed.
func (t traced) resume(request int, sig unix.Signal) {
	unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(t.tid), 0, uintptr(sig), 0, 0)
}

func isStopSignal(sig unix.Signal) bool {
	return sig == unix.SIGSTOP || sig == unix.SIGTSTP || sig == unix.SIGTTIN || sig == unix.SIGTTOU
}
