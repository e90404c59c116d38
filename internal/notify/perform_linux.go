//go:build linux && (amd64 || arm64)

package notify

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Native is a system call with its arguments, for Perform.
type Native struct {
	Nr   int
	Args [6]uint64
}

// Perform makes the call's thread make other calls instead, one after the other, and answers the
// call with the result of the first. Use Perform for calls only the thread itself can make, for
// example to change the working directory. The rules must let the calls pass.
//
// The thread is traced for a moment, so this process must be allowed to trace the thread. After an
// error the call still waits, unless the error is [ErrGone]. Other code waiting for children of
// this process may see the thread stop (CLD_TRAPPED), and must ignore the stop.
func (c *Call) Perform(calls ...Native) error {
	// Linux accepts trace requests only from the thread that attached.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(c.TID); err != nil {
		return err
	}
	if err := unix.PtraceInterrupt(c.TID); err != nil {
		return ErrGone
	}
	t := &traced{tid: c.TID}
	sig, event, err := t.wait()
	if err != nil {
		return err
	}
	if !event { // a signal stopped the thread first
		t.detach(sig)
		return ErrGone
	}
	return t.perform(c, calls)
}

// A traced is a stopped thread, traced by the current thread.
type traced struct{ tid int }

// wait waits until the thread stops, and returns the signal of the stop. event is false if a signal
// stopped the thread, and true for a stop of tracing.
func (t *traced) wait() (sig unix.Signal, event bool, err error) {
	for {
		var ws unix.WaitStatus
		switch _, err := unix.Wait4(t.tid, &ws, unix.WALL|unix.WNOTHREAD, nil); {
		case err == unix.EINTR:
			continue
		case err != nil || !ws.Stopped():
			return 0, false, ErrGone
		}
		return ws.StopSignal(), ws>>16 != 0 || ws.StopSignal() == unix.SIGTRAP|inCall, nil
	}
}

// inCall is the bit PTRACE_O_TRACESYSGOOD adds to the signal of a stop at a call.
const inCall = 0x80

func (t *traced) detach(sig unix.Signal) {
	unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(t.tid), 0, uintptr(sig), 0, 0)
}

// perform makes the thread make calls, one after the other. Afterwards the thread continues after
// c, the interrupted call, with the result of the first of calls.
func (t *traced) perform(c *Call, calls []Native) error {
	var old registers
	if err := old.get(t.tid); err != nil || !old.interrupted(c) {
		t.detach(0)
		return ErrGone
	}
	// No signal may arrive between the calls, so all are blocked. The kernel delivers pending
	// signals when the thread continues.
	mask, err := t.setMask(^uint64(0))
	if err != nil {
		t.detach(0)
		return ErrGone
	}
	unix.PtraceSetOptions(t.tid, unix.PTRACE_O_TRACESYSGOOD)
	var first int64
	for i, n := range calls {
		result, err := t.call(old, n)
		if err == ErrGone {
			return ErrGone
		}
		if err != nil { // another stop came first, so the thread continues and repeats its own call
			old.set(t.tid)
			t.setMask(mask)
			t.detach(unix.SIGSTOP)
			return ErrGone
		}
		if i == 0 {
			first = result
		}
	}
	end := old
	end.answer(first)
	end.set(t.tid)
	t.setMask(mask)
	t.detach(0)
	return nil
}

// call makes the thread make the call n and returns its result. call returns ErrGone if the thread
// has ended, and EINTR if another stop came first.
func (t *traced) call(from registers, n Native) (int64, error) {
	from.prepare(n)
	if err := from.set(t.tid); err != nil {
		return 0, ErrGone
	}
	for range 2 { // the thread stops at the beginning and at the end of the call
		if err := unix.PtraceSyscall(t.tid, 0); err != nil {
			return 0, ErrGone
		}
		sig, _, err := t.wait()
		if err != nil {
			return 0, err
		}
		if sig != unix.SIGTRAP|inCall {
			return 0, unix.EINTR
		}
	}
	var r registers
	if err := r.get(t.tid); err != nil {
		return 0, ErrGone
	}
	return r.result(), nil
}

// setMask replaces the mask of blocked signals of the thread, and returns the old mask.
func (t *traced) setMask(mask uint64) (old uint64, err error) {
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGMASK, uintptr(t.tid), 8, uintptr(unsafe.Pointer(&old)), 0, 0); e != 0 {
		return 0, e
	}
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETSIGMASK, uintptr(t.tid), 8, uintptr(unsafe.Pointer(&mask)), 0, 0); e != 0 {
		return 0, e
	}
	return old, nil
}
