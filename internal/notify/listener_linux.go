//go:build linux && (amd64 || arm64)

package notify

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
)

// A notification has the layout of struct seccomp_notif.
type notification struct {
	id    uint64
	tid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// A response has the layout of struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	errno int32 // negative
	flags uint32
}

// An addition has the layout of struct seccomp_notif_addfd.
type addition struct {
	id         uint64
	flags      uint32
	srcfd      uint32
	newfd      uint32
	newfdFlags uint32
}

// A Listener receives the calls of a program and of all its descendants. A single goroutine at a
// time may call Recv or Close. All other methods may be called by any goroutine.
type Listener struct {
	fd      int
	polled  bool // the kernel does not wake a thread that waits for a call when no task is left
	threads threads

	mu     sync.RWMutex // prevents closing fd while it is in use; Recv does not take it
	closed bool         // guarded by mu
}

// newListener returns a listener that owns fd.
func newListener(fd int) *Listener {
	l := &Listener{fd: fd, polled: kernelBefore(6, 11)}
	// With this flag, the kernel wakes the receiver on the processor of the caller. Short calls are
	// then three times as fast. Kernels before 6.6 do not have it; the error is ignored.
	unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS,
		unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	return l
}

// kernelBefore reports whether the kernel is older than a version, or the version is unknown.
func kernelBefore(major, minor int) bool {
	var u unix.Utsname
	var a, b int
	if unix.Uname(&u) != nil {
		return true
	}
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); n < 2 {
		return true
	}
	return a < major || a == major && b < minor
}

// FromFile returns the listener of a file made by Listener.File, in the same process or another.
// FromFile closes the file.
func FromFile(f *os.File) (*Listener, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return newListener(fd), nil
}

// File returns a duplicate of the listener's descriptor, to be passed to another process.
func (l *Listener) File() (*os.File, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	fd, err := unix.FcntlInt(uintptr(l.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "seccomp-listener"), nil
}

// ioctl runs an ioctl on the listener and returns the result. ENOENT and ESRCH mean that the call
// does not wait any more, and become ErrGone. After Close the error is net.ErrClosed.
func (l *Listener) ioctl(req uintptr, arg unsafe.Pointer) (int, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return 0, net.ErrClosed
	}
	call := unix.RawSyscall // most ioctls do not wait, so Go's scheduler need not be informed
	if req == unix.SECCOMP_IOCTL_NOTIF_ADDFD {
		call = unix.Syscall
	}
	for {
		r, _, e := call(unix.SYS_IOCTL, uintptr(l.fd), req, uintptr(arg))
		switch e {
		case 0:
			return int(r), nil
		case unix.EINTR:
			continue
		case unix.ENOENT, unix.ESRCH:
			return 0, ErrGone
		}
		return 0, e
	}
}

// Recv waits for the next call. Recv returns io.EOF if no task is left to make a call, and
// net.ErrClosed after Close.
func (l *Listener) Recv() (*Call, error) {
	l.mu.RLock()
	closed := l.closed
	l.mu.RUnlock()
	if closed {
		return nil, net.ErrClosed
	}
	for {
		if l.polled {
			if said, err := l.poll(-1); err != nil {
				return nil, err
			} else if said&unix.POLLIN == 0 {
				return nil, io.EOF
			}
		}
		var n notification
		switch _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); e {
		case 0:
			return &Call{ID: n.id, TID: int(n.tid), Nr: int(n.nr), Args: n.args, Compat: n.arch == auditCompat, l: l},
				nil
		case unix.EINTR:
		case unix.ENOENT: // the thread was interrupted, or was the last one
			if said, err := l.poll(0); err != nil {
				return nil, err
			} else if said&unix.POLLHUP != 0 {
				return nil, io.EOF
			}
		default:
			return nil, e
		}
	}
}

// poll waits until there is a call or no task is left, and returns the events of poll(2). timeout
// is in milliseconds; -1 means no limit.
func (l *Listener) poll(timeout int) (said int16, err error) {
	p := [1]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}
	_, err = sock.Poll(p[:], timeout)
	return p[0].Revents, err
}

// Close closes the listener. If no other process has a handle of it, notified calls of the program
// fail with ENOSYS from now on. A second Close does nothing.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.threads.drop()
	return unix.Close(l.fd)
}

// A Call is a system call waiting for an answer. The fields of a Call do not change. Any goroutine
// may call its methods. Continue, Return, Inject, AnswerAt and Perform answer the call.
type Call struct {
	ID   uint64
	TID  int // thread ID in the PID namespace of this process
	Nr   int
	Args [6]uint64

	Compat bool // Nr is the number of a 32-bit call

	l *Listener
}

// Valid reports whether the call still waits. If the result is true, earlier data read from the
// thread belongs to the thread.
func (c *Call) Valid() bool {
	id := c.ID
	_, err := c.l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id))
	return err == nil
}

// Continue lets the kernel execute the call, with the arguments it has at that moment.
func (c *Call) Continue() error {
	return c.send(response{id: c.ID, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

// Return answers the call: with errno, or with val if errno is 0.
func (c *Call) Return(val int64, errno unix.Errno) error {
	if errno != 0 {
		val = 0
	}
	return c.send(response{id: c.ID, val: val, errno: -int32(errno)})
}

func (c *Call) send(r response) error {
	_, err := c.l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	return err
}

// Inject gives the program a copy of fd at the lowest free number, and answers the call with the
// number. flags is 0 or O_CLOEXEC. Inject returns EMFILE if the program has no free descriptor; the
// call still waits then. The caller continues to own fd.
func (c *Call) Inject(fd, flags int) error {
	_, err := c.add(addition{id: c.ID, flags: unix.SECCOMP_ADDFD_FLAG_SEND, srcfd: uint32(fd),
		newfdFlags: uint32(flags)})
	return err
}

// Add gives the program a copy of fd and returns its number in the program. The call still waits.
func (c *Call) Add(fd, flags int) (int, error) {
	return c.add(addition{id: c.ID, srcfd: uint32(fd), newfdFlags: uint32(flags)})
}

// InjectAt gives the program a copy of fd at the given number. If the program has a file there, the
// kernel closes the file. The call still waits.
func (c *Call) InjectAt(fd, number, flags int) error {
	_, err := c.add(addition{id: c.ID, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcfd: uint32(fd),
		newfd: uint32(number), newfdFlags: uint32(flags)})
	return err
}

// AnswerAt gives the program a copy of fd at the given number, closing a file there, and answers
// the call with that number. No signal can arrive between the two steps. flags is 0 or O_CLOEXEC.
// After an error the call still waits, unless the error is [ErrGone]. The caller continues to own
// fd.
func (c *Call) AnswerAt(fd, number, flags int) error {
	const at = unix.SECCOMP_ADDFD_FLAG_SETFD | unix.SECCOMP_ADDFD_FLAG_SEND
	_, err := c.add(addition{id: c.ID, flags: at, srcfd: uint32(fd), newfd: uint32(number), newfdFlags: uint32(flags)})
	return err
}

// add runs the ioctl, and waits until the program's thread has taken the descriptor. Signals are
// blocked during the wait. Otherwise SIGURG, by which Go preempts goroutines, could interrupt the
// ioctl; the call would then be answered with 0 and the descriptor lost, or given twice.
func (c *Call) add(a addition) (n int, err error) {
	err = withoutSignals(func() (err error) {
		n, err = c.l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a))
		return err
	})
	return n, err
}

// ReadMem reads the program's memory at addr into b and returns the number of bytes read. The error
// is nil only if all of b was read, and ErrGone if the thread has ended.
func (c *Call) ReadMem(addr uint64, b []byte) (n int, err error) {
	return c.mem(unix.SYS_PROCESS_VM_READV, addr, b)
}

// WriteMem writes b to the program's memory at addr, if the call is still valid. Otherwise WriteMem
// returns ErrGone. A signal in the microsecond between the check and the write is not detected; the
// write then happens while the program already continues. Therefore write as late as possible, and
// write the data a restarted call would write again.
func (c *Call) WriteMem(addr uint64, b []byte) (n int, err error) {
	if !c.Valid() {
		return 0, ErrGone
	}
	return c.mem(unix.SYS_PROCESS_VM_WRITEV, addr, b)
}

// mem copies between b and the program's memory by the system call nr, process_vm_readv or
// process_vm_writev. It makes the call directly, because the functions of package unix would
// allocate the lists.
func (c *Call) mem(nr uintptr, addr uint64, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	here, there := unix.Iovec{Base: &b[0]}, unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	here.SetLen(len(b))
	n, _, e := unix.Syscall6(nr, uintptr(c.TID), uintptr(unsafe.Pointer(&here)), 1,
		uintptr(unsafe.Pointer(&there)), 1, 0)
	switch {
	case e == unix.ESRCH:
		return 0, ErrGone
	case e != 0:
		return 0, e
	case int(n) < len(b):
		return int(n), unix.EFAULT
	}
	return int(n), nil
}

// Borrow returns a copy of the program's descriptor, for the caller to close. The copy shares the
// file's offset and status flags with the program. The error is EBADF if the program has no such
// descriptor, and EPERM if this process may not access the program.
func (c *Call) Borrow(fd int) (int, error) { return c.l.threads.borrow(c, fd) }

// OpenThread returns a pidfd of the call's thread, for the caller to close. The pidfd polls as
// readable once the thread has ended.
func (c *Call) OpenThread() (int, error) {
	fd, err := openThread(c.TID)
	if err != nil {
		return -1, err
	}
	if !c.Valid() { // the thread has ended, and its number may belong to another
		unix.Close(fd)
		return -1, ErrGone
	}
	return fd, nil
}

func (c *Call) String() string { return fmt.Sprintf("call %#x: nr %d of thread %d", c.ID, c.Nr, c.TID) }
