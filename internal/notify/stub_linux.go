//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
)

// stubEnv is the environment variable with the descriptor of the control socket. A process with the
// variable is a stub.
const stubEnv = "VIADUCT_NOTIFY_STUB"

// A Command is the program to start, with the rules.
type Command struct {
	Path string   // path of the program
	Args []string // arguments; the first is the program's name
	Env  []string // environment; nil means the environment of this process
	Dir  string

	Rules []Rule

	// PidEnv lists variables of Env whose value becomes the program's process ID. An example is
	// LISTEN_PID.
	PidEnv []string

	// Ignored is the set of signals the program ignores from the start: bit 0 is signal 1. All
	// other signals have their default action.
	Ignored uint64

	// Before, if set, is called when the listener exists and the program does not run yet. If
	// Before returns an error, Start fails with a *StartError around that error.
	Before func(pid int, l *Listener) error
}

// A Child is a started program: a child process of the caller, so the caller must wait for the end
// by wait4.
type Child struct {
	Pid      int
	Listener *Listener
}

// A StartError reports the step at which a start failed.
type StartError struct {
	Step string // "start", "filter" or "exec"
	Err  error
}

func (e *StartError) Error() string { return "notify: " + e.Step + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Start runs a program under a filter. The program inherits the descriptors of the process not
// closed on exec, under the same numbers. The program can't gain privileges from setuid files,
// because Start sets no_new_privs.
//
// Apart from errors in the rules, the errors are of type *StartError, and may wrap ErrNested.
func Start(c *Command) (*Child, error) {
	filter, err := assemble(auditArch, auditCompat, hasX32, c.Rules)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, &StartError{"start", err}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &StartError{"start", err}
	}
	ours := pair[0]
	defer unix.Close(ours)
	theirs, err := dupHigh(pair[1])
	unix.Close(pair[1])
	if err != nil {
		return nil, &StartError{"start", err}
	}
	env := c.Env
	if env == nil {
		env = os.Environ()
	}
	env = append(append([]string(nil), env...), stubEnv+"="+strconv.Itoa(theirs))
	p, err := os.StartProcess(self, append([]string{c.Path}, c.Args...),
		&os.ProcAttr{Dir: c.Dir, Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	unix.Close(theirs)
	if err != nil {
		return nil, &StartError{"start", err}
	}
	child := &Child{Pid: p.Pid}
	if err := child.handshake(c, ours, filter); err != nil {
		if child.Listener != nil {
			child.Listener.Close()
		}
		p.Kill()
		p.Wait()
		return nil, err
	}
	p.Release()
	return child, nil
}

// dupHigh returns an inheritable copy of fd with a high number. Low numbers from 3 on may belong to
// descriptors passed to the program on purpose.
func dupHigh(fd int) (int, error) {
	for _, low := range []int{900, 200, 50} {
		if n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, low); err == nil {
			return n, nil
		}
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 10)
}

// handshake sends the filter, the names of PidEnv and the ignored signals to the stub, and receives
// the listener. Then a byte allows the stub to execute the program, and the end of the socket
// confirms the exec.
func (ch *Child) handshake(c *Command, ctl int, filter []Insn) error {
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, filter)
	ignored := binary.LittleEndian.AppendUint64(nil, c.Ignored)
	if err := sendAll(ctl, b.Bytes(), []byte(strings.Join(c.PidEnv, "\x00")), ignored); err != nil {
		return &StartError{"start", err}
	}
	step, err := ch.receive(ctl)
	if err != nil {
		return &StartError{step, err}
	}
	if ch.Listener == nil {
		return &StartError{"start", errors.New("the stub ended")}
	}
	if c.Before != nil {
		if err := c.Before(ch.Pid, ch.Listener); err != nil {
			return &StartError{"start", err}
		}
	}
	if err := sendAll(ctl, []byte{1}); err != nil {
		return &StartError{"start", err}
	}
	if err := ch.passExec(ctl); err != nil {
		return &StartError{"start", err}
	}
	if step, err = ch.receive(ctl); err != nil {
		return &StartError{step, err}
	}
	return nil
}

// passExec allows the execve call of the stub, if the rules notify execve. It returns when the stub
// has sent a message or has become the program. It leaves the program's calls to the caller.
func (ch *Child) passExec(ctl int) error {
	said := func(timeout int, more ...unix.PollFd) (p []unix.PollFd, err error) {
		p = append([]unix.PollFd{{Fd: int32(ctl), Events: unix.POLLIN}}, more...)
		_, err = sock.Poll(p, timeout)
		return p, err
	}
	for {
		p, err := said(-1, unix.PollFd{Fd: int32(ch.Listener.fd), Events: unix.POLLIN})
		if err != nil || p[0].Revents != 0 || p[1].Revents&unix.POLLIN == 0 {
			return err
		}
		// The socket was polled before the listener. It is polled again, because the stub may have
		// become the program since, and then the call belongs to the program.
		if p, err = said(0); err != nil || p[0].Revents != 0 {
			return err
		}
		c, err := ch.Listener.Recv()
		if err != nil {
			return err
		}
		c.Continue()
	}
}

func sendAll(fd int, messages ...[]byte) error {
	for _, m := range messages {
		if err := unix.Sendto(fd, m, unix.MSG_NOSIGNAL, nil); err != nil {
			return err
		}
	}
	return nil
}

// steps has the letters of the steps. A message of the stub is such a letter and an error number.
// With the letter 'l', the message has the listener instead.
var steps = map[byte]string{'f': "filter", 'e': "exec"}

func (ch *Child) receive(ctl int) (step string, err error) {
	b, oob := make([]byte, 16), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(ctl, b, oob, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, oobn, _, _, err = unix.Recvmsg(ctl, b, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return "start", err
	}
	if n < 5 { // the stub has ended, or has become the program
		return "", nil
	}
	if b[0] != 'l' {
		e := unix.Errno(binary.LittleEndian.Uint32(b[1:]))
		if b[0] == 'f' && e == unix.EBUSY {
			return steps[b[0]], ErrNested
		}
		return steps[b[0]], e
	}
	ms, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(ms) != 1 {
		return "filter", fmt.Errorf("no listener came: %w", err)
	}
	fds, err := unix.ParseUnixRights(&ms[0])
	if err != nil || len(fds) != 1 {
		return "filter", fmt.Errorf("no listener came: %w", err)
	}
	ch.Listener = newListener(fds[0])
	return "filter", nil
}

// MaybeStub turns a process started by Start into the program. In any other process MaybeStub does
// nothing. A binary that calls Start must call MaybeStub before anything else.
func MaybeStub() {
	v, ok := os.LookupEnv(stubEnv)
	if !ok {
		return
	}
	os.Unsetenv(stubEnv)
	ctl, err := strconv.Atoi(v)
	if err != nil || len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "viaduct: started as a stub by something else than viaduct")
		os.Exit(125)
	}
	// The rules may notify calls on descriptors with high numbers, and no listener answers yet.
	// Therefore the stub uses a low number.
	if low, err := unix.FcntlInt(uintptr(ctl), unix.F_DUPFD_CLOEXEC, 3); err == nil {
		unix.Close(ctl)
		ctl = low
	}
	unix.CloseOnExec(ctl)
	step, err := stub(ctl)
	e, _ := errors.AsType[unix.Errno](err)
	if e == 0 {
		e = unix.EPROTO
	}
	sendAll(ctl, binary.LittleEndian.AppendUint32([]byte{step}, uint32(e)))
	os.Exit(125)
}

// stub sets up the filter and executes the program. stub returns only after an error: the step that
// failed, and the error.
func stub(ctl int) (step byte, err error) {
	// The filter belongs to a single thread, so the same thread must execute the program.
	runtime.LockOSThread()
	b := make([]byte, maxInsns*8)
	n, err := unix.Read(ctl, b)
	if err != nil || n == 0 || n%8 != 0 {
		return 'f', err
	}
	names := make([]byte, 4096)
	m, err := unix.Read(ctl, names)
	if err != nil {
		return 'f', err
	}
	for name := range strings.SplitSeq(string(names[:m]), "\x00") {
		if _, ok := os.LookupEnv(name); ok {
			os.Setenv(name, strconv.Itoa(os.Getpid()))
		}
	}
	var ignored [8]byte
	if n, err := unix.Read(ctl, ignored[:]); err != nil || n != len(ignored) {
		return 'f', err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 'f', err
	}
	// The filter does not confine the program. So the stub switches off the protection against
	// speculation, by which kernels before 5.16 slow filtered programs down.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	prog := unix.SockFprog{Len: uint16(n / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&b[0]))}
	fd, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(b)
	if e != 0 {
		return 'f', e
	}
	unix.CloseOnExec(int(fd))
	if err := unix.Sendmsg(ctl, []byte{'l', 0, 0, 0, 0}, unix.UnixRights(int(fd)), nil, unix.MSG_NOSIGNAL); err != nil {
		return 'f', err
	}
	unix.Close(int(fd))
	var one [1]byte
	if n, err := unix.Read(ctl, one[:]); err != nil || n == 0 {
		return 'f', err
	}
	ignore(binary.LittleEndian.Uint64(ignored[:]))
	err = syscall.Exec(os.Args[0], os.Args[1:], os.Environ())
	return 'e', err
}

// ignore makes the kernel ignore the signals of mask, bit 0 for signal 1. ignore bypasses the Go
// runtime, because the setting is for the program about to be executed; executing ends the
// runtime's handlers.
func ignore(mask uint64) {
	action := [4]uint64{1} // a struct sigaction with SIG_IGN
	for sig := 1; sig <= 64; sig++ {
		if mask>>(sig-1)&1 != 0 {
			unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
		}
	}
}
