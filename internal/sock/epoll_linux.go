package sock

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An instance is an epoll instance for one descriptor. The runtime's poller
// watches the instance in turn: it hears of every event that the instance asks
// for.
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

// EpollCtl is epoll_ctl by a raw system call, which does not wait.
func EpollCtl(epfd, op, fd int, ev *unix.EpollEvent) bool {
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(ev)), 0, 0)
	return e == 0
}

// EpollTake fills events with reports that are there, without waiting.
func EpollTake(epfd int, events []unix.EpollEvent) int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// arrivals wakes its waiter whenever something has arrived since it was armed,
// until it is disarmed: a waiter that waits for long asks once.
type arrivals struct {
	instance
	armed bool // owned by the waiter
}

// arrived are the events of an arrival.
const arrived = unix.EPOLLIN | unix.EPOLLRDHUP

func (a *arrivals) open(fd int) bool { return a.instance.open(fd, 0) }

func (a *arrivals) arm(fd int) bool {
	if !a.armed {
		a.armed = a.ask(fd, arrived)
	}
	return a.armed
}

// move has the waiter, which may be asleep, hear of to instead of from.
func (a *arrivals) move(from, to int) bool {
	var ev unix.EpollEvent
	if a.armed {
		ev.Events = arrived
	}
	return EpollCtl(a.epfd, unix.EPOLL_CTL_ADD, to, &ev) && EpollCtl(a.epfd, unix.EPOLL_CTL_DEL, from, &unix.EpollEvent{})
}

func (a *arrivals) disarm(fd int) {
	if a.armed {
		a.armed = !a.ask(fd, 0)
	}
}

// A Watch waits for one kind of readiness of a descriptor. It reports once per
// Ready.
type Watch struct {
	instance
	events uint32

	// Owned by the waiter.
	armed bool // the readiness was asked for and has not been reported
	stale bool // the kernel may still report what was asked for before
}

// Open makes the instance. It is false if the process has no descriptor left.
func (w *Watch) Open(fd int, events uint32) bool {
	// Errors and hang-ups are reported whatever was asked for, so there may
	// be a report before the first request.
	w.events, w.stale = events|unix.EPOLLONESHOT, true
	return w.instance.open(fd, unix.EPOLLONESHOT)
}

// Close gives the instance back, after its waiter has left Wait.
func (w *Watch) Close() { w.instance.close() }

// Sleep calls ready, which returns what Ready does, until it is true. The error is
// that of a Watch that was closed.
func (w *Watch) Sleep(ready func(uintptr) bool) error { return w.raw.Read(ready) }

// Ready tells whether waiting is over, inside the function that the runtime
// calls for the waiter: at first it asks to be woken as soon as fd is ready,
// which may be now. If that can't be done waiting is over too.
func (w *Watch) Ready(fd int) bool {
	if w.armed {
		w.armed = false
		w.stale = !w.take()
		return true
	}
	if w.stale {
		// A report that was not taken would keep the next one from being made.
		w.stale = false
		w.take()
	}
	w.armed = w.ask(fd, w.events)
	return !w.armed
}

// take tells whether there was a report.
func (w *Watch) take() bool {
	var ev [1]unix.EpollEvent
	return EpollTake(w.epfd, ev[:]) == 1
}
