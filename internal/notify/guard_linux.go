//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Guard serves a listener whose first receiver has died. Guard lets every call pass, until no task
// is left to make a call, and returns the error of Recv. Call Wake at the same time.
func Guard(l *Listener) error {
	for {
		c, err := l.Recv()
		if err != nil {
			return err
		}
		c.Continue()
	}
}

// Wake interrupts descendants of this process waiting in a call received by the dead receiver. The
// kernel then restarts and reports the call again. This process should be an ancestor of the
// program, or have become one by PR_SET_CHILD_SUBREAPER. No other goroutine may wait for children
// of this process before Wake returns, because such a goroutine would consume the events Wake waits
// for.
func Wake() {
	// Linux accepts trace requests only from the thread that attached.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The second round finds threads that were about to enter the call during the first.
	for range 2 {
		for _, pid := range descendants(os.Getpid()) {
			tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
			if err != nil {
				continue
			}
			for _, t := range tasks {
				tid, err := strconv.Atoi(t.Name())
				if err == nil && isHeld(pid, tid) {
					interrupt(pid, tid)
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// isHeld reports whether a thread probably sleeps in a notification. isHeld checks the name of the
// kernel's function or, if hidden, the thread's state.
func isHeld(pid, tid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid)
	if b, err := os.ReadFile(dir + "/wchan"); err == nil && len(b) > 1 {
		return bytes.Contains(b, []byte("seccomp"))
	}
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(b, []byte(") "))
	return ok && len(rest) > 0 && rest[0] == 'S'
}

// interrupt interrupts the system call in which a thread sleeps, without delivering a signal. If
// this process may not trace the thread, interrupt stops and continues the thread's process.
func interrupt(pid, tid int) {
	if err := unix.PtraceSeize(tid); err != nil {
		if syscall.Kill(pid, syscall.SIGSTOP) == nil {
			waitState(pid, 'T')
			syscall.Kill(pid, syscall.SIGCONT)
		}
		return
	}
	if unix.PtraceInterrupt(tid) == nil {
		// The loop ends when the thread has stopped or has died.
		for range 200 {
			var ws unix.WaitStatus
			got, err := unix.Wait4(tid, &ws, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
			if got == tid || (err != nil && err != unix.EINTR) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	unix.PtraceDetach(tid)
}

func waitState(pid int, state byte) {
	for range 200 {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return
		}
		if _, rest, ok := bytes.Cut(b, []byte(") ")); ok && len(rest) > 0 && rest[0] == state {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// descendants returns the IDs of the children of root, of their children, and so on.
func descendants(root int) (out []int) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name may contain any characters, also parentheses.
		if i := bytes.LastIndexByte(b, ')'); i >= 0 {
			if f := strings.Fields(string(b[i+1:])); len(f) > 1 {
				ppid, _ := strconv.Atoi(f[1])
				children[ppid] = append(children[ppid], pid)
			}
		}
	}
	for todo := children[root]; len(todo) > 0; todo = todo[1:] {
		out = append(out, todo[0])
		todo = append(todo, children[todo[0]]...)
	}
	return out
}
