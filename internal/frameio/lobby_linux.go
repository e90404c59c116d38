package frameio

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A lobby is where connections wait that have little to do and that nobody
// polls: one epoll instance holds their sockets, and one goroutine takes what
// arrives for any of them. So an idle connection has neither a goroutine nor a
// second descriptor. One that turns out to be busy, or whose consumer polls, gets
// a goroutine and an instance of its own, see devote, until little comes again,
// see retire.
//
// A socket reports what is there when it comes in, and then each arrival, once. So
// whoever takes a report reads until a read is short, behind which everything is
// reported again, or sees to it that somebody does: a goroutine of the connection's
// own begins by reading until there is nothing.
type lobby struct {
	mu sync.Mutex

	// Guarded by mu.
	open   bool     // there is an instance, and somebody on duty
	epfd   int      // the instance
	door   *watch   // where who is on duty sleeps, and whose it is otherwise
	duty   uint32   // moves when somebody else comes on duty
	seats  []seat   // of all who are in
	free   []uint32 // and those that nobody has
	ending bool     // somebody looks soon whether all of them are

	todo   []unix.EpollEvent // reports that nobody has looked into yet, a part of
	taken  [reports]unix.EpollEvent
	busy   bool        // one is being looked into
	turn   uint32      // moves with every such report
	before uint32      // turn at the last look of the supervisor
	eye    *time.Timer // the supervisor's
	eyed   bool        // it is running
}

// A seat is a connection's place. Its number and generation are what the kernel
// reports; by then it may be somebody else's.
type seat struct {
	c   *Conn
	gen uint32
}

const (
	// reports is how many are taken from the kernel at a time.
	reports = 64

	// overdue is how long the one on duty may be busy with one connection before
	// somebody else takes the others over: no method of a protocol should block,
	// but a consumer of one may do worse than it was asked to.
	overdue = 20 * time.Millisecond

	// Where several connections brought as much as crowd bytes one after the other,
	// the next are waited for with a nap: more of what they bring is there then, the
	// rest of a message for instance that is a little longer than a packet, and reading
	// does not get in the way of the peer, who is about to send it. Systems make it
	// some 50 us longer.
	crowd  = 64 << 10
	gather = 100 * time.Microsecond

	// emptyFor is how long an empty lobby stays open.
	emptyFor = 50 * time.Millisecond

	// A connection is busy that had rush arrivals in a row which were less than
	// rushGap apart.
	rush    = 8
	rushGap = time.Millisecond
)

// lobbies are as many as half the processors, since the other end or the
// consumers need some too.
var (
	lobbies  [32]lobby
	lobbyFor atomic.Uint32
)

// sit has the connection wait in a lobby, unless that can't be had. What has
// arrived is reported there. The caller has the receive role, and nobody waits for
// the socket.
func (c *Conn) sit() bool {
	r := &c.rx
	r.park()
	if r.stage != nil && r.fill == 0 {
		r.unstage() // nobody comes by to do it
	}
	n := min((runtime.GOMAXPROCS(0)+1)/2, len(lobbies))
	return lobbies[int(lobbyFor.Add(1))%n].enter(c)
}

func (l *lobby) enter(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open && !l.openLocked() {
		return false
	}
	if len(l.free) == 0 {
		l.free = append(l.free, uint32(len(l.seats)))
		l.seats = append(l.seats, seat{})
	}
	n := l.free[len(l.free)-1]
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(n), Pad: int32(l.seats[n].gen)}
	if !epollCtl(l.epfd, unix.EPOLL_CTL_ADD, c.sock.Load().fd, &ev) {
		l.endSoonLocked()
		return false
	}
	l.free = l.free[:len(l.free)-1]
	l.seats[n].c = c
	c.rx.seat = n
	c.rx.lobby.Store(l)
	return true
}

// vacate takes the connection out of the lobby it is in, if it is in one, and
// reports whether it was. The socket is open.
func (c *Conn) vacate() bool {
	l := c.rx.lobby.Load()
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.rx.lobby.Load() != l {
		return false // somebody else was first
	}
	c.rx.lobby.Store(nil)
	epollCtl(l.epfd, unix.EPOLL_CTL_DEL, c.sock.Load().fd, nil)
	s := &l.seats[c.rx.seat]
	s.c = nil
	s.gen++
	l.free = append(l.free, c.rx.seat)
	l.endSoonLocked()
	return true
}

func (l *lobby) emptyLocked() bool { return len(l.free) == len(l.seats) }

func (l *lobby) openLocked() bool {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	door := new(watch)
	if !door.open(epfd, unix.EPOLLIN) {
		unix.Close(epfd)
		return false
	}
	l.open, l.epfd, l.door = true, epfd, door
	l.todo, l.busy = nil, false
	l.duty++
	go l.run(l.duty, door, epfd)
	return true
}

// endSoonLocked sees to it that an empty lobby does not stay open for long.
func (l *lobby) endSoonLocked() {
	if l.ending || !l.emptyLocked() {
		return
	}
	l.ending = true
	time.AfterFunc(emptyFor, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ending = false
		if l.open && l.emptyLocked() {
			l.open = false
			l.seats, l.free = nil, nil
			l.door.close() // and waits until the one on duty has left it
			unix.Close(l.epfd)
		}
	})
}

// gathers counts the naps.
var gathers atomic.Uint32

// run is what the one on duty does. It sleeps at a door of its own, that opens
// once: as long as it is awake arrivals wake nobody.
func (l *lobby) run(duty uint32, door *watch, epfd int) {
	now := time.Now()
	awake := func(uintptr) bool {
		if door.armed {
			door.forget()
			return true
		}
		return !door.arm(epfd)
	}
	for {
		c, ev, ok := l.next(duty, &now)
		served, bytes := 0, 0
		for ; c != nil; c, ev, ok = l.next(duty, &now) {
			bytes += c.serve(ev.Events, now)
			served++
		}
		switch {
		case !ok:
			return
		case served > 1 && bytes >= crowd:
			gathers.Add(1)
			nap(gather)
			continue
		}
		if door.raw.Read(awake) != nil {
			return // the lobby was closed
		}
	}
}

// next returns a connection that has something to read, or nil if there is none.
// ok is false if the caller is not on duty any more. now is when reports were
// taken last.
func (l *lobby) next(duty uint32, now *time.Time) (c *Conn, ev unix.EpollEvent, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if duty != l.duty || !l.open {
		return nil, ev, false
	}
	for l.busy = false; ; {
		for len(l.todo) > 0 {
			ev, l.todo = l.todo[0], l.todo[1:]
			if s := &l.seats[ev.Fd]; s.gen == uint32(ev.Pad) && s.c != nil {
				l.busy = true
				l.turn++
				l.superviseLocked()
				return s.c, ev, true
			}
		}
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epfd), uintptr(unsafe.Pointer(&l.taken)), reports, 0, 0, 0)
		if e != 0 || n == 0 {
			return nil, ev, true
		}
		l.todo = l.taken[:n]
		*now = time.Now()
	}
}

// superviseLocked has somebody look now and then, as long as there is something to
// do, whether it is being done.
func (l *lobby) superviseLocked() {
	if l.eyed {
		return
	}
	l.eyed, l.before = true, l.turn
	if l.eye == nil {
		l.eye = time.AfterFunc(overdue, l.supervise)
	} else {
		l.eye.Reset(overdue)
	}
}

func (l *lobby) supervise() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.eyed = false
	if !l.open || !l.busy {
		return
	}
	if l.turn == l.before {
		// Who comes back from there finds that he was relieved.
		l.duty++
		l.busy = false
		go l.run(l.duty, l.door, l.epfd)
		return
	}
	l.superviseLocked()
}

// serve takes what has arrived for the connection, and returns how many bytes that
// were. [who is on duty]
func (c *Conn) serve(events uint32, now time.Time) (took int) {
	r := &c.rx
	if !r.mu.TryLock() {
		c.devote() // somebody polls, for instance
		return 0
	}
	if r.closed || r.done {
		r.mu.Unlock()
		return 0
	}
	p := r.pollsLocked()
	if p != r.seen {
		select {
		case <-r.resume: // who polled went to sleep
			r.seen = p
		default:
		}
	}
	if p != r.seen || r.told.Load() != nil {
		r.mu.Unlock()
		c.devote()
		return 0
	}
	// What arrives behind a short read is reported again. An end of the stream that
	// came before this report is part of it.
	got, more, err := c.receive(events&^unix.EPOLLIN != 0)
	if got && err == nil && r.direct > 0 {
		// The read may have been short for want of memory to read to: then the next
		// one says so.
		_, more, err = c.receive(true)
	}
	if got {
		r.woken.Add(1)
		took = r.took
	}
	if now.Sub(r.served) >= rushGap {
		r.rushed = 0
	}
	r.served = now
	r.rushed++
	if err != nil {
		c.vacate()
		c.wg.Add(1) // Close waits, and finds the role taken until here
		if c.release(err) {
			Go(true, func() {
				defer c.wg.Done()
				c.fail(err) // may take a while
			})
		} else {
			c.wg.Done()
		}
		return took
	}
	r.park()
	busy := more || r.rushed >= rush
	c.release(nil)
	if busy {
		c.devote()
	}
	return took
}

// devote gives a connection in a lobby a goroutine of its own, which begins by
// looking at the socket.
func (c *Conn) devote() {
	if !c.vacate() {
		return
	}
	Go(true, func() {
		r := &c.rx
		r.mu.Lock()
		gone := r.closed || r.done
		if !gone {
			r.rushed = 0
			c.wg.Add(1)
		}
		r.mu.Unlock()
		if gone {
			return
		}
		defer c.wg.Done()
		c.enlist()
		c.passive()
	})
}

// retire has the connection wait in a lobby again. It is false if it can't. [passive
// goroutine, which ends]
func (c *Conn) retire() bool {
	// The instance is let go first: from the moment the connection is in a lobby,
	// another goroutine may have one made.
	s := c.sock.Load()
	s.mu.Lock()
	if !s.closed {
		s.in.close()
		s.in = edge{}
	}
	s.mu.Unlock()
	r := &c.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	// What was left staged needs somebody: nothing that arrives would tell of it.
	return r.closed || r.done || !r.left && c.sit()
}

func epollCtl(epfd, op, fd int, ev *unix.EpollEvent) bool {
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(ev)), 0, 0)
	return e == 0
}
