//go:build linux && (amd64 || arm64)

package run

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forwarded lists the signals passed on to the program.
var forwarded = []syscall.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1,
	syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH,
	syscall.SIGPWR, syscall.SIGVTALRM,
}

// stopping are the signals that stop a process without a handler. They are passed on, too. The
// front stops only after the program, because when the front stops, the shell gives the terminal to
// the next command, and a running program could still read from the terminal.
var stopping = []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}

// catchSignals makes the runtime send signals to ch. Ignored stop signals are left out, because the
// terminal treats a process with handlers for stop signals differently.
func catchSignals(ch chan<- os.Signal, which ...syscall.Signal) {
	ignored := ignoredNow()
	for _, s := range which {
		if !slices.Contains(stopping, s) || !ignored.has(s) {
			signal.Notify(ch, s)
		}
	}
}

// outlive ignores all signals with three properties: the program ignores the signal, the signal is
// not passed on, and the signal would end this process when sent to the process group. Go's runtime
// survives the other signals.
func outlive(ignored signalSet) {
	if ignored.has(syscall.SIGABRT) {
		signal.Ignore(syscall.SIGABRT)
	}
}

// signalSettle is the least time a signal to the whole group gets to reach the supervisor after the
// arrival at the front.
const signalSettle = 20 * time.Millisecond

// settled is a signal from the supervisor to itself. After the arrival, all earlier signals have
// arrived.
const settled = syscall.Signal(64) // the last signal number

// signalCounts distinguishes signals to the whole process group, already delivered to the program,
// from signals to the front alone.
type signalCounts struct {
	settling sync.Mutex    // held while a signal settled is pending
	settled  chan struct{} // receives a value when that signal has arrived

	mu    sync.Mutex
	seen  [65]int // guarded by mu; received by this process, and not reported by the front yet
	ended bool    // guarded by mu; the program's process number is free
}

func (c *signalCounts) count() {
	ch := make(chan os.Signal, 64)
	catchSignals(ch, forwarded...)
	catchSignals(ch, stopping...)
	signal.Notify(ch, settled)
	c.settled = make(chan struct{}, 1)
	go func() {
		for s := range ch {
			if s == settled {
				select {
				case c.settled <- struct{}{}:
				default:
				}
				continue
			}
			c.mu.Lock()
			c.seen[s.(syscall.Signal)]++
			c.mu.Unlock()
		}
	}()
}

// settle waits for the count of all signals sent to this process. The result is the time taken.
func (c *signalCounts) settle() time.Duration {
	c.settling.Lock()
	defer c.settling.Unlock()
	begin := time.Now()
	if syscall.Kill(os.Getpid(), settled) == nil {
		<-c.settled
	}
	return time.Since(begin)
}

// pass sends the program a signal of the front, unless this process received the signal as well.
func (c *signalCounts) pass(program int, sig syscall.Signal) {
	// The thread with the signal may be delayed for longer than the thread with a later signal, in
	// particular on a busy machine.
	took := c.settle()
	for until := time.Now().Add(max(signalSettle, 4*took)); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		seen := c.seen[sig] > 0
		if seen {
			c.seen[sig]--
		}
		c.mu.Unlock()
		if seen {
			return
		}
		if time.Now().After(until) {
			c.kill(program, sig)
			return
		}
	}
}

func (c *signalCounts) kill(program int, sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		syscall.Kill(program, sig)
	}
}

func (c *signalCounts) programEnded() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
}

// stopBy stops this process with a signal. It returns when the process is continued.
func stopBy(sig syscall.Signal) {
	// Package signal cannot restore the kernel's default action of a signal.
	var kernels, ours [32]byte // struct sigaction
	action := func(set, old *[32]byte) {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)),
			uintptr(unsafe.Pointer(old)), 8, 0, 0)
	}
	action(&kernels, &ours)
	defer action(&ours, nil)
	runtime.LockOSThread() // a signal to this thread takes effect before the call returns
	defer runtime.UnlockOSThread()
	unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
}

// stops keeps the front stopped while the program is stopped.
type stops struct {
	front, frontPid int              // pidfd and process number
	program         int              // its process number
	stopOrder       func(signal int) // sends the front the order to stop
	resume          func()           // continues the program

	mu        sync.Mutex
	times     int  // guarded by mu; how many orders were sent to the front
	by        int  // guarded by mu; the signal that has stopped the program; 0: the program runs
	ordered   bool // guarded by mu; the front must stop, and has not reported yet that it was continued
	continued bool // guarded by mu; the program was continued since the last order
}

// changed handles a stop or a continuation of the program.
func (s *stops) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := takeChange(s.program, 0)
	switch {
	case c.stopped:
		s.continued = s.continued || s.by != 0 // the program was continued and stopped again before we noticed
		s.by = c.code
		s.stopFront()
	case c.continued && s.ordered && !s.continued:
		s.by, s.continued = 0, true
		go s.continueFront(s.times)
	case c.continued:
		s.by = 0
	}
}

// stopFront orders the front to stop unless a stop is already pending. It is called with mu held.
func (s *stops) stopFront() {
	if !s.ordered {
		s.times++
		s.ordered, s.continued = true, false
		s.stopOrder(s.by)
	}
}

// continueFront continues the front, perhaps about to stop, until the front reports the
// continuation.
func (s *stops) continueFront(times int) {
	for {
		s.mu.Lock()
		done := !s.ordered || s.times != times
		s.mu.Unlock()
		if done {
			return
		}
		if isStopped(s.frontPid) { // before the front stops, SIGCONT could cancel the stop signal
			unix.PidfdSendSignal(s.front, syscall.SIGCONT, nil, 0)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// frontContinued handles the front's report of a continuation. If the program is still stopped,
// frontContinued continues the program.
func (s *stops) frontContinued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ordered = false
	switch {
	case s.by == 0 || takeChange(s.program, unix.WNOWAIT).pid != 0 || !isStopped(s.program):
	case s.continued: // the program was continued and has stopped again
		s.stopFront()
	default:
		s.resume()
	}
}

// isStopped reports whether a process is stopped. The result is false for an unknown process. The
// state of a traced process is t instead of T.
func isStopped(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndex(b, []byte(") "))
	return i >= 0 && bytes.HasPrefix(bytes.ToUpper(b[i:]), []byte(") T"))
}
