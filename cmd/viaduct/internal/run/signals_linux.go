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

// forwarded are the signals that are passed on to the program.
var forwarded = []syscall.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH,
	syscall.SIGPWR, syscall.SIGVTALRM,
}

// stopping are the signals that stop a process unless it handles them. They are passed on
// too, and the front stops when the program has: a shell gives the terminal to its next
// command when the front has stopped, and until the program has it may read from it.
var stopping = []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}

// catchSignals makes the runtime send signals to ch. Of those that stop a process the ignored ones
// are left alone: the terminal treats a process that handles them otherwise.
func catchSignals(ch chan<- os.Signal, which ...syscall.Signal) {
	ignored := ignoredNow()
	for _, s := range which {
		if !slices.Contains(stopping, s) || !ignored.has(s) {
			signal.Notify(ch, s)
		}
	}
}

// outlive ignores what the program ignores as well, does not have passed on, and would end this
// process, if it is sent to the process group: Go's runtime lets a process live through the others.
func outlive(ignored signalSet) {
	if ignored.has(syscall.SIGABRT) {
		signal.Ignore(syscall.SIGABRT)
	}
}

// signalSettle is how long a signal to the whole group may take at least to reach the
// supervisor after it has reached the front.
const signalSettle = 20 * time.Millisecond

// settled is a signal that the supervisor sends to itself: what was sent to it before
// has come when that does.
const settled = syscall.Signal(64) // the last one

// signalCounts tell signals to the whole process group, which have reached the
// program, from those to the front alone.
type signalCounts struct {
	settling sync.Mutex    // held while a signal settled is under way
	settled  chan struct{} // it has come

	mu    sync.Mutex
	seen  [65]int // guarded by mu; received by this process and not by the front yet
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

// settle waits until what was sent to this process has been counted, and returns how
// long that took.
func (c *signalCounts) settle() time.Duration {
	c.settling.Lock()
	defer c.settling.Unlock()
	begin := time.Now()
	if syscall.Kill(os.Getpid(), settled) == nil {
		<-c.settled
	}
	return time.Since(begin)
}

// pass sends the program a signal that the front got, unless this process got
// it as well.
func (c *signalCounts) pass(program int, sig syscall.Signal) {
	// A thread that handles the signal may be held up for longer than one that handles
	// what came after it, all the more on a machine that is busy.
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

// stopBy stops this process by a signal, and returns when it is continued.
func stopBy(sig syscall.Signal) {
	// Package signal has no way back to what the kernel does with a signal.
	var kernels, ours [32]byte // struct sigaction
	action := func(set, old *[32]byte) {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	}
	action(&kernels, &ours)
	defer action(&ours, nil)
	runtime.LockOSThread() // a thread takes what is sent to it before the call returns
	defer runtime.UnlockOSThread()
	unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
}

// stops has the front stopped while the program is.
type stops struct {
	front, frontPid int              // a pidfd, and the process number
	program         int              // its process number
	tell            func(signal int) // tells the front to stop
	resume          func()           // continues the program

	mu        sync.Mutex
	times     int  // guarded by mu; how often the front was told
	by        int  // guarded by mu; the signal that has stopped the program; 0: it runs
	told      bool // guarded by mu; the front is to stop, and has not said yet that it goes on
	continued bool // guarded by mu; since it was told, the program has been continued
}

// changed takes that the program has stopped or been continued.
func (s *stops) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := takeChange(s.program, 0)
	switch {
	case c.stopped:
		s.continued = s.continued || s.by != 0 // and stopped before that was taken
		s.by = c.code
		s.stopFront()
	case c.continued && s.told && !s.continued:
		s.by, s.continued = 0, true
		go s.continueFront(s.times)
	case c.continued:
		s.by = 0
	}
}

// stopFront has the front stop unless it is stopping. It is called with mu held.
func (s *stops) stopFront() {
	if !s.told {
		s.times++
		s.told, s.continued = true, false
		s.tell(s.by)
	}
}

// continueFront continues the front, which may be about to stop, until it says that it
// goes on.
func (s *stops) continueFront(times int) {
	for {
		s.mu.Lock()
		done := !s.told || s.times != times
		s.mu.Unlock()
		if done {
			return
		}
		if isStopped(s.frontPid) { // or else the signal could undo one that is to stop it
			unix.PidfdSendSignal(s.front, syscall.SIGCONT, nil, 0)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// frontContinued takes that the front goes on, and continues the program if that was
// not, alone or with the front.
func (s *stops) frontContinued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = false
	switch {
	case s.by == 0 || takeChange(s.program, unix.WNOWAIT).pid != 0 || !isStopped(s.program):
	case s.continued: // and stopped again
		s.stopFront()
	default:
		s.resume()
	}
}

// isStopped reports whether a process is stopped.
func isStopped(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndex(b, []byte(") "))
	return i >= 0 && bytes.HasPrefix(b[i:], []byte(") T"))
}
