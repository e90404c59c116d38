package sock

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An instance is an epoll instance for a single descriptor. The runtime's poller watches the
// instance instead of the descriptor, so that only the events set by ask wake a goroutine. f is nil
// before open and after a failed open.
type instance struct {
	f    *os.File
	raw  syscall.RawConn
	epfd int
}

func (n *instance) open(fd int, events uint32) bool {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	unix.SetNonblock(epfd, true)
	n.epfd = epfd
	f := os.NewFile(uintptr(epfd), "epoll")
	if err = unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events}); err == nil {
		n.raw, err = f.SyscallConn()
	}
	if err != nil {
		f.Close()
		return false
	}
	n.f = f
	return true
}

func (n *instance) close() {
	if n.f != nil {
		n.f.Close()
	}
}

func (n *instance) ask(fd int, events uint32) bool {
	ev := unix.EpollEvent{Events: events}
	return EpollCtl(n.epfd, unix.EPOLL_CTL_MOD, fd, &ev)
}

// EpollCtl is epoll_ctl by a raw system call, because the call never waits. The result is true if
// the call succeeded.
func EpollCtl(epfd, op, fd int, ev *unix.EpollEvent) bool {
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), uintptr(op), uintptr(fd),
		uintptr(unsafe.Pointer(ev)), 0, 0)
	return e == 0
}

// EpollTake fills events with the pending events of the epoll instance epfd, without waiting, and
// returns their number. It returns 0 if there are none, and after an error.
func EpollTake(epfd int, events []unix.EpollEvent) int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// arrivals wakes a sleeping reader at every arrival from arm until disarm. Several sleeps in a row
// need a single arm, because arm is a system call.
type arrivals struct {
	instance
	armed bool // owned by the waiter
}

// arrived is the set of events counted as an arrival.
const arrived = unix.EPOLLIN | unix.EPOLLRDHUP

func (a *arrivals) open(fd int) bool { return a.instance.open(fd, 0) }

func (a *arrivals) arm(fd int) bool {
	if !a.armed {
		a.armed = a.ask(fd, arrived)
	}
	return a.armed
}

// move replaces the watched descriptor from by to, and reports whether the kernel accepted it. The
// reader may be asleep meanwhile.
func (a *arrivals) move(from, to int) bool {
	var ev unix.EpollEvent
	if a.armed {
		ev.Events = arrived
	}
	return EpollCtl(a.epfd, unix.EPOLL_CTL_ADD, to, &ev) &&
		EpollCtl(a.epfd, unix.EPOLL_CTL_DEL, from, &unix.EpollEvent{})
}

func (a *arrivals) disarm(fd int) {
	if a.armed {
		a.armed = !a.ask(fd, 0)
	}
}

// A Watch waits for a kind of readiness of a descriptor, for example room to write. A request by
// Ready leads to at most a single report.
type Watch struct {
	instance
	events uint32

	// The waiter owns the following fields.
	armed bool // the readiness was requested and has not been reported
	stale bool // the kernel may still report an earlier request
}

// Open creates the epoll instance for the given events of fd. It returns false if the process has
// no descriptor left.
func (w *Watch) Open(fd int, events uint32) bool {
	// The kernel always reports errors and hang-ups, so that there may be a report before the first
	// request.
	w.events, w.stale = events|unix.EPOLLONESHOT, true
	return w.instance.open(fd, unix.EPOLLONESHOT)
}

// Close closes the instance. It returns after the waiter has left Sleep. It does nothing before
// Open.
func (w *Watch) Close() { w.instance.close() }

// Sleep calls ready at once and after each report, until ready returns true. ready must return the
// result of Ready. An error means a closed Watch.
func (w *Watch) Sleep(ready func(uintptr) bool) error { return w.raw.Read(ready) }

// Ready reports whether the wait is over. Call Ready inside the function passed to Sleep. The first
// call requests a report as soon as fd is ready, possibly at once, and returns false. Ready returns
// true after the report, and also if the kernel refuses the request.
func (w *Watch) Ready(fd int) bool {
	if w.armed {
		w.armed = false
		w.stale = !w.take()
		return true
	}
	if w.stale {
		// A pending report would prevent the next one.
		w.stale = false
		w.take()
	}
	w.armed = w.ask(fd, w.events)
	return !w.armed
}

// take consumes a pending report, and returns false if no report was pending.
func (w *Watch) take() bool {
	var ev [1]unix.EpollEvent
	return EpollTake(w.epfd, ev[:]) == 1
}
