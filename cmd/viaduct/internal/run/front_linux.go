//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/notify"
)

// supervisorEnv holds the descriptor of the socket to the front, and the signals the program must
// ignore. A process with this variable is the supervisor.
const supervisorEnv = "VIADUCT_RUN_SUPERVISOR"

// First bytes of the messages from the supervisor to the front.
const (
	sayListener = 'l' // carries the seccomp listener
	sayPid      = 'p' // followed by the program's process number
	sayExit     = 'x' // followed by the exit code
	sayStopped  = 't' // followed by the signal that stopped the program
	sayRestart  = 'r' // followed by the number of a process whose interrupted calls must restart
)

// First bytes of the messages from the front to the supervisor.
const (
	sayAck       = 'a' // the listener has arrived
	saySignal    = 's' // followed by the number of a signal
	sayContinued = 'c' // the front, which had stopped with the program, was continued
	sayRestarts  = 'r' // the front has begun to make interrupted calls restart, or cannot
)

// IsSupervisor reports whether Main started this process as the supervisor.
func IsSupervisor() bool { return os.Getenv(supervisorEnv) != "" }

// Main runs a program. The error is a *shell.Exit with the exit code.
func Main(_ context.Context, e *shell.Env, o *Options) error {
	r, err := parseRules(o)
	if err != nil {
		return &shell.Exit{Code: ExitRun, Err: shell.Usage(err)}
	}
	if v := os.Getenv(supervisorEnv); v != "" {
		os.Unsetenv(supervisorEnv)
		return supervise(e, o, r, v)
	}
	f := &front{signals: make(chan os.Signal, 64), restarts: o.Restarts, restarters: map[int]*notify.Restarter{}}
	code, err := f.run()
	return &shell.Exit{Code: code, Err: err}
}

// A front is the process the shell started.
type front struct {
	conn *net.UnixConn

	signals  chan os.Signal // signals to pass on
	restarts Restarts       // nil without a service

	mu         sync.Mutex
	listener   *notify.Listener          // guarded by mu
	program    int                       // guarded by mu; a pidfd, after the supervisor has died
	restarters map[int]*notify.Restarter // guarded by mu; by process
}

func (f *front) run() (int, error) {
	// Orphaned descendants become children of the supervisor. After the supervisor's death, the
	// descendants become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return ExitRun, err
	}
	ignored := ignoredAtStart()
	ours, theirs, err := controlPair()
	if err != nil {
		return ExitRun, err
	}
	f.conn = ours
	defer ours.Close()
	self, err := os.Executable()
	if err != nil {
		return ExitRun, err
	}
	env := append(os.Environ(), fmt.Sprintf("%s=%d,%x", supervisorEnv, theirs, uint64(ignored)))
	outlive(ignored)
	catchSignals(f.signals, forwarded...)
	// The kernel counts the supervisor as a child of this thread. A restarter waits for everything
	// that its own thread may wait for, and so must not run on this one.
	runtime.LockOSThread()
	p, err := os.StartProcess(self, os.Args, &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	unix.Close(theirs)
	if err != nil {
		return ExitRun, err
	}
	go f.passOn()
	closeInherited(f.conn)
	return f.wait(p.Pid)
}

// controlPair makes the socket pair between front and supervisor. theirs is inheritable, and has a
// number unused by programs.
func controlPair() (ours *net.UnixConn, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	if theirs, err = dupHigh(pair[1]); err == nil {
		unix.Close(pair[1])
		ours, err = unixConn(pair[0])
	}
	return ours, theirs, err
}

func dupHigh(fd int) (n int, err error) {
	for _, low := range []int{901, 201, 51, 11} {
		if n, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD, low); err == nil {
			return n, nil
		}
	}
	return -1, err
}

func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "control")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// passOn sends each signal to the supervisor. A signal to the whole process group, for example from
// the terminal, has reached the supervisor and the program as well. The supervisor passes on only
// the others, see signalCounts.
func (f *front) passOn() {
	for s := range f.signals {
		n := s.(syscall.Signal)
		f.mu.Lock()
		program := f.program
		f.mu.Unlock()
		if program > 0 {
			// Without a supervisor, nobody knows whether the program has already received the
			// signal. Therefore stop signals are not passed on: to be stopped by the terminal twice
			// is worse than to miss a stop signal sent only to this process.
			if !slices.Contains(stopping, n) {
				unix.PidfdSendSignal(program, n, nil, 0)
			}
			continue
		}
		f.conn.Write([]byte{saySignal, byte(n)})
	}
}

// closeInherited closes the inherited descriptors, except standard error, and replaces standard
// input and output by /dev/null. Otherwise a reader waiting for the end of a pipe would wait for
// this process, too. Standard error stays open for messages.
func closeInherited(keep ...*net.UnixConn) {
	kept := map[int]bool{0: true, 1: true, 2: true}
	for _, c := range keep {
		if raw, err := c.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { kept[int(fd)] = true })
		}
	}
	ents, _ := os.ReadDir("/proc/self/fd")
	for _, ent := range ents {
		fd, err := strconv.Atoi(ent.Name())
		if err != nil || kept[fd] {
			continue
		}
		// All descriptors of our own are close-on-exec.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	toNull(0, 1)
}

// toNull replaces descriptors by /dev/null, or does nothing if /dev/null cannot be opened.
func toNull(fds ...int) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for _, fd := range fds {
		unix.Dup3(null, fd, 0)
	}
	unix.Close(null)
}

// wait waits until the program ends, and returns the exit code.
func (f *front) wait(supervisor int) (int, error) {
	pid := 0
	for {
		b, oob := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
		n, oobn, _, _, err := f.conn.ReadMsgUnix(b, oob)
		if err != nil || n == 0 {
			break
		}
		switch b[0] {
		case sayListener:
			l, err := takeListener(oob[:oobn])
			if err != nil {
				return ExitRun, err
			}
			f.mu.Lock()
			f.listener = l
			f.mu.Unlock()
			f.conn.Write([]byte{sayAck})
		case sayPid:
			pid = int(binary.LittleEndian.Uint32(b[1:]))
			catchSignals(f.signals, stopping...)
		case sayStopped:
			stopBy(syscall.Signal(binary.LittleEndian.Uint32(b[1:])))
			f.conn.Write([]byte{sayContinued})
		case sayRestart:
			f.restart(int(binary.LittleEndian.Uint32(b[1:])))
			f.conn.Write([]byte{sayRestarts})
		case sayExit:
			return int(binary.LittleEndian.Uint32(b[1:])), nil
		}
	}
	if pid == 0 { // the supervisor failed and printed why, or became the program itself
		f.signalTo(supervisor)
		var ws unix.WaitStatus
		for {
			if _, err := unix.Wait4(supervisor, &ws, 0, nil); err == nil {
				return exitCode(ws), nil
			} else if err != unix.EINTR {
				return ExitRun, err
			}
		}
	}
	return f.guard(pid)
}

// restart makes interrupted calls of a process restart, see Restarts. The front traces the process
// and not the supervisor, whose child the process may be, see notify.Restarter. An error is ignored:
// a debugger may trace the process, and then a signal may make a call fail with EINTR.
func (f *front) restart(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.restarters[pid] != nil {
		return
	}
	r, err := notify.NewRestarter(pid, f.restarts)
	if err != nil {
		return
	}
	f.restarters[pid] = r
	go func() {
		<-r.Done()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.restarters, pid)
	}()
}

// endRestarts stops the tracing of all processes.
func (f *front) endRestarts() {
	f.mu.Lock()
	all := slices.Collect(maps.Values(f.restarters))
	f.mu.Unlock()
	for _, r := range all {
		r.Stop()
	}
}

func takeListener(oob []byte) (*notify.Listener, error) {
	fd, err := oneRight(oob)
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fd)
	return notify.FromFile(os.NewFile(uintptr(fd), "listener"))
}

// guard takes over after the supervisor has died. From then on the kernel serves the program's
// calls, and orphans become children of the front. guard returns the program's exit code.
func (f *front) guard(pid int) (int, error) {
	fmt.Fprintln(os.Stderr, "viaduct run: the supervisor died; carried connections are lost, the program goes on with plain TCP")
	f.signalTo(pid)
	f.endRestarts() // the wait below would take their reports
	go func() {
		if err := notify.Guard(f.listener); !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, "viaduct run: guard:", err)
		}
	}()
	notify.Wake()
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return ExitRun, fmt.Errorf("run: the program is not our child: %w", err)
		case got == pid && ws.Stopped():
			stopBy(ws.StopSignal())
		case got == pid:
			return exitCode(ws), nil
		}
	}
}

// signalTo makes passOn send signals directly to a process.
func (f *front) signalTo(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // the process has ended
	}
	f.mu.Lock()
	f.program = fd
	f.mu.Unlock()
}

// exitCode returns the exit code of a wait status, as shells do.
func exitCode(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
