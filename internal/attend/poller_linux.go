package attend

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/perturb"
	"viaduct/internal/sock"
)

// A sharedPoller waits for the arrivals of many connections: a single epoll instance has all
// sources, and a single goroutine receives for all connections. So an idle connection needs neither
// a goroutine nor a second descriptor.
//
// A source is reported when it is registered, if bytes are there, and then once per arrival. So the
// goroutine handling a report must not leave bytes unread without a later report. There are three
// possibilities:
//   - The goroutine reads until a read is short; later arrivals are reported again.
//   - If the source needs a request for each report (shared memory), the goroutine makes the
//     request and then reads until nothing is left.
//   - The goroutine starts an attendant for the connection. The attendant first reads until nothing
//     is left.
type sharedPoller struct {
	mu perturb.Mutex

	// These fields are guarded by mu.
	open       bool        // whether there is an instance, and a goroutine that serves it
	epfd       int         // the instance
	watch      *sock.Watch // where the poller's goroutine sleeps
	generation uint32      // changes when another goroutine takes over
	slots      []slot      // one slot for each registered connection
	free       []uint32    // slots without a connection
	closing    bool        // whether a timer is set that will close the poller if it is empty

	reports []unix.EpollEvent // the reports in taken that were not served
	taken   [maxReports]unix.EpollEvent
	serving bool        // whether a report is being served
	turn    uint32      // changes with every served report
	before  uint32      // value of turn when the watchdog last checked
	dog     *time.Timer // the watchdog
	watched bool        // whether the watchdog's timer runs
}

// A slot is the entry of a connection. The kernel reports the slot's number and generation. When a
// report is read, the slot may belong to another connection; the generations then differ.
type slot struct {
	a          *Attention
	generation uint32
}

// A registration records the shared poller of a connection, and how close together the arrivals
// are.
type registration struct {
	poller atomic.Pointer[sharedPoller] // poller where it is registered, or nil
	slot   uint32                       // guarded by poller.mu
	// Number of consecutive arrivals close together; receive role.
	closely uint32
	last    time.Time // time of the last report; receive role

	// The place in the table of a drainer, or nil.
	slotOf atomic.Pointer[atomic.Pointer[Attention]]
	turn   uint32 // the drainer's turn of the last report; receive role
	bulk   uint32 // number of consecutive arrivals of many bytes; receive role
}

const (
	// maxReports is the largest number of reports read from the kernel at a time.
	maxReports = 64

	// overdue is the time the goroutine of a poller may spend on a connection before another
	// goroutine takes over the other connections. The methods of a protocol must not block, but a
	// callback of the consumer may.
	overdue = 20 * time.Millisecond

	// If several connections had crowd bytes or more in one round, the poller pauses for gatherTime
	// before the next round. More bytes of each connection have arrived then, for example the end
	// of a message a little longer than a packet, and reading does not compete with peers about to
	// send. Timer slack makes the pause some 50 us longer.
	crowd      = 64 << 10
	gatherTime = 100 * time.Microsecond

	// emptyTime is the time an empty poller stays open.
	emptyTime = 50 * time.Millisecond

	// A connection is busy if closeRun consecutive arrivals were less than closeGap apart.
	closeRun = 8
	closeGap = time.Millisecond
)

// A pollerSet is the shared pollers of the process. Half as many as there are processors are used,
// because the peers or the consumers need processors too.
type pollerSet struct {
	all  [32]sharedPoller
	next atomic.Uint32 // changes with each connection
}

// add registers the source of a with a shared poller and applies e, which changes the state from
// from to Shared. The result is false, without a change, if there can be no poller or the state is
// no longer from. Bytes already there are reported. The caller has the receive role, and nobody
// else waits for the source.
func (s *pollerSet) add(a *Attention, from State, e Event) bool {
	a.recv.Rest()
	n := min((runtime.GOMAXPROCS(0)+1)/2, len(s.all))
	return s.all[int(s.next.Add(1))%n].add(a, from, e)
}

// add registers a, and changes the state under the lock, so that a goroutine seeing the new state
// also sees the registration. It returns false, without a change, if the registration fails.
func (p *sharedPoller) add(a *Attention, from State, e Event) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open && !p.openLocked() {
		return false
	}
	if len(p.free) == 0 {
		p.free = append(p.free, uint32(len(p.slots)))
		p.slots = append(p.slots, slot{})
	}
	n := p.free[len(p.free)-1]
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(n),
		Pad: int32(p.slots[n].generation)}
	if !sock.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, a.src.FD(), &ev) {
		p.closeSoonLocked()
		return false
	}
	if a.src.Ask() {
		// Earlier arrivals are not reported, so add fails if bytes are there already. An attendant
		// then reads the bytes.
		if _, err := a.src.Readable(); err != sock.ErrWouldBlock {
			sock.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, a.src.FD(), nil)
			p.closeSoonLocked()
			return false
		}
	}
	p.free = p.free[:len(p.free)-1]
	p.slots[n].a = a
	a.shared.slot = n
	a.shared.poller.Store(p)
	if !a.moveFrom(from, e) {
		p.removeLocked(a)
		return false
	}
	return true
}

// leave removes the source of a, whose registration r is, from the shared poller, if any. The source
// must be open.
func (r *registration) leave(a *Attention) {
	if at := r.slotOf.Load(); at != nil {
		at.CompareAndSwap(a, nil)
		r.slotOf.CompareAndSwap(at, nil)
	}
	p := r.poller.Load()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.poller.Load() == p { // another goroutine may have removed the connection
		p.removeLocked(a)
	}
}

func (p *sharedPoller) removeLocked(a *Attention) {
	a.shared.poller.Store(nil)
	sock.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, a.src.FD(), nil)
	s := &p.slots[a.shared.slot]
	s.a = nil
	s.generation++
	p.free = append(p.free, a.shared.slot)
	p.closeSoonLocked()
}

func (p *sharedPoller) emptyLocked() bool { return len(p.free) == len(p.slots) }

func (p *sharedPoller) openLocked() bool {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	watch := new(sock.Watch)
	if !watch.Open(epfd, unix.EPOLLIN) {
		unix.Close(epfd)
		return false
	}
	p.open, p.epfd, p.watch = true, epfd, watch
	p.reports, p.serving = nil, false
	p.generation++
	go p.run(p.generation, watch, epfd)
	return true
}

// closeSoonLocked starts a timer that closes the poller unless a connection registers meanwhile.
// closeSoonLocked does nothing while there are connections.
func (p *sharedPoller) closeSoonLocked() {
	if p.closing || !p.emptyLocked() {
		return
	}
	p.closing = true
	time.AfterFunc(emptyTime, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closing = false
		if p.open && p.emptyLocked() {
			p.open = false
			p.slots, p.free = nil, nil
			p.watch.Close() // Close also waits until the goroutine has left the watch
			unix.Close(p.epfd)
		}
	})
}

// run is the main function of the poller's goroutine. The goroutine sleeps at a Watch, which
// reports only once per request, so that arrivals cause no wake-up while the goroutine is awake.
func (p *sharedPoller) run(generation uint32, watch *sock.Watch, epfd int) {
	now := time.Now()
	// Created once, because each creation allocates.
	ready := func(uintptr) bool { return watch.Ready(epfd) }
	for {
		a, events, ok := p.next(generation, &now)
		served, bytes := 0, 0
		for ; a != nil; a, events, ok = p.next(generation, &now) {
			bytes += report{a: a, events: events, now: now}.serve()
			served++
		}
		switch {
		case !ok:
			return
		case served > 1 && bytes >= crowd:
			process.gathers.Add(1)
			nap(gatherTime)
			continue
		}
		if watch.Sleep(ready) != nil {
			return // the poller is closed
		}
	}
}

// next returns a connection with a report, and the events of the report. a is nil if there is no
// report. ok is false if another goroutine has taken over or the poller is closed. next sets now to
// the time when reports were last read.
func (p *sharedPoller) next(generation uint32, now *time.Time) (a *Attention, events uint32, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if generation != p.generation || !p.open {
		return nil, 0, false
	}
	for p.serving = false; ; {
		for len(p.reports) > 0 {
			ev := p.reports[0]
			p.reports = p.reports[1:]
			if s := &p.slots[ev.Fd]; s.generation == uint32(ev.Pad) && s.a != nil {
				p.serving = true
				p.turn++
				p.watchLocked()
				return s.a, ev.Events, true
			}
		}
		n := sock.EpollTake(p.epfd, p.taken[:])
		if n == 0 {
			return nil, 0, true
		}
		p.reports = p.taken[:n]
		*now = time.Now()
	}
}

// watchLocked starts the watchdog while reports are served.
func (p *sharedPoller) watchLocked() {
	if p.watched {
		return
	}
	p.watched, p.before = true, p.turn
	if p.dog == nil {
		p.dog = time.AfterFunc(overdue, p.look)
	} else {
		p.dog.Reset(overdue)
	}
}

// look is the watchdog: if the same report is still being served, look starts another goroutine.
// The old goroutine later finds a new generation, and ends.
func (p *sharedPoller) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watched = false
	if !p.open || !p.serving {
		return
	}
	if p.turn == p.before {
		p.generation++
		p.serving = false
		go p.run(p.generation, p.watch, p.epfd)
		return
	}
	p.watchLocked()
}
