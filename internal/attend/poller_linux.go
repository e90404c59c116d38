package attend

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/perturb"
	"viaduct/internal/sock"
)

// A sharedPoller waits for the arrivals of many connections: one epoll instance
// has their sources, and one goroutine receives what arrives for any of them. So
// an idle connection has neither a goroutine nor a second descriptor.
//
// A source is reported when it is registered, if something is there, and then
// once per arrival. So whatever takes a report reads until a read is short,
// behind which everything is reported again, or has asked for reports anew and reads
// until there is nothing, if the source needs that, or leaves the connection to an
// attendant, which begins by reading until there is nothing.
type sharedPoller struct {
	mu perturb.Mutex

	// Guarded by mu.
	open       bool        // there is an instance, and a goroutine that serves it
	epfd       int         // the instance
	watch      *sock.Watch // where that goroutine sleeps
	generation uint32      // moves when another goroutine takes over
	slots      []slot      // of all registered connections
	free       []uint32    // slots without a connection
	closing    bool        // a timer is going to close the poller if it is empty

	reports []unix.EpollEvent // taken from the kernel and not yet served, a part of
	taken   [maxReports]unix.EpollEvent
	serving bool        // a report is being served
	turn    uint32      // moves with every report that is served
	before  uint32      // turn when the watchdog last looked
	dog     *time.Timer // the watchdog
	watched bool        // the watchdog is going to look
}

// A slot is a connection's place. Its number and generation are what the kernel
// reports; by then the slot may be another connection's.
type slot struct {
	a          *Attention
	generation uint32
}

// A registration is what a connection keeps about its shared poller.
type registration struct {
	poller  atomic.Pointer[sharedPoller] // where it is registered, or nil
	slot    uint32                       // guarded by poller.mu
	closely uint32                       // arrivals that followed each other closely; receive role
	last    time.Time                    // when the last of them was reported; receive role
}

const (
	// maxReports is the number of reports taken from the kernel at a time.
	maxReports = 64

	// overdue is how long the goroutine of a poller may be busy with one
	// connection before another takes the other connections over: no method of a
	// protocol should block, but a callback of its consumer may.
	overdue = 20 * time.Millisecond

	// Where several connections brought crowd bytes or more in one round, the
	// poller pauses for gatherTime before the next: more of what they bring is
	// there then, the rest of a message for instance that is a little longer than a
	// packet, and reading does not get in the way of the peers, which are about to
	// send it. Systems make the pause some 50 us longer.
	crowd      = 64 << 10
	gatherTime = 100 * time.Microsecond

	// emptyTime is how long an empty poller stays open.
	emptyTime = 50 * time.Millisecond

	// A connection is busy that had closeRun arrivals in a row which were less
	// than closeGap apart.
	closeRun = 8
	closeGap = time.Millisecond
)

// pollers are as many as half the processors, since the other end or the
// consumers need some too.
var (
	pollers    [32]sharedPoller
	nextPoller atomic.Uint32
)

// register leads from a state to Shared: it registers the source with a shared
// poller and applies e. It is false, and nothing was done, if there can be no
// poller or the state is not from any more. What has arrived is reported. The
// caller has the receive role, and nothing else waits for the source.
func (a *Attention) register(from State, e Event) bool {
	a.recv.Rest()
	n := min((runtime.GOMAXPROCS(0)+1)/2, len(pollers))
	return pollers[int(nextPoller.Add(1))%n].add(a, from, e)
}

// add registers a. The state changes under the lock, so that whatever moves it on
// finds the registration.
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
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(n), Pad: int32(p.slots[n].generation)}
	if !sock.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, a.src.FD(), &ev) {
		p.closeSoonLocked()
		return false
	}
	if a.src.Ask() {
		// What came before is not reported: an attendant reads it.
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

// deregister takes the source out of its poller, if it is in one. The source is
// open.
func (a *Attention) deregister() {
	p := a.shared.poller.Load()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.shared.poller.Load() == p { // nothing else has done it
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

// closeSoonLocked starts a timer that closes the poller if it is empty then.
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
			p.watch.Close() // and waits until the goroutine has left it
			unix.Close(p.epfd)
		}
	})
}

// gathers counts the pauses between rounds.
var gathers atomic.Uint32

// run is the goroutine of the poller. It sleeps at a Watch, which reports once:
// while it is awake, arrivals wake nothing.
func (p *sharedPoller) run(generation uint32, watch *sock.Watch, epfd int) {
	now := time.Now()
	ready := func(uintptr) bool { return watch.Ready(epfd) } // once: it is allocated
	for {
		a, events, ok := p.next(generation, &now)
		served, bytes := 0, 0
		for ; a != nil; a, events, ok = p.next(generation, &now) {
			bytes += a.serve(events, now)
			served++
		}
		switch {
		case !ok:
			return
		case served > 1 && bytes >= crowd:
			gathers.Add(1)
			nap(gatherTime)
			continue
		}
		if watch.Sleep(ready) != nil {
			return // the poller was closed
		}
	}
}

// next returns a connection with a report, or nil if there is none. ok is false
// if another goroutine has taken over. now is when reports were last taken.
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

// look is the watchdog: if the same report is still being served, another
// goroutine takes over. The one that comes back from there finds a new
// generation.
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

// serve receives what was reported for the connection, and returns how many
// bytes that were. [goroutine of the poller]
func (a *Attention) serve(events uint32, now time.Time) int {
	if !a.role.TryLock() {
		a.apply(Contended)
		return 0
	}
	if a.State() != Shared {
		a.role.Unlock() // whatever moved the state looks at the source
		return 0
	}
	if a.looked() {
		a.role.Unlock()
		a.apply(Contended)
		return 0
	}
	// What arrives behind a short read is reported again. An end of the stream
	// that came before this report is part of it.
	all := a.src.Ask() || events&^unix.EPOLLIN != 0
	got, more, err := a.recv.Receive(all, false)
	if got.Any && err == nil && a.recv.Partial() {
		// The read may have been short for want of memory to read to: then the
		// next one says so.
		var rest Got
		rest, more, err = a.recv.Receive(true, false)
		got.Bytes += rest.Bytes
	}
	if got.Any {
		a.idle.arrivals.Add(1)
	}
	r := &a.shared
	if now.Sub(r.last) >= closeGap {
		r.closely = 0
	}
	r.last = now
	r.closely++
	if err != nil {
		a.deregister()
		a.wg.Add(1) // Close waits for the role, and Join for what follows
		if a.end(err) {
			Go(true, func() {
				defer a.wg.Done()
				a.recv.Deliver()
				a.recv.Ended(err) // may take a while
			})
		} else {
			a.wg.Done()
		}
		return got.Bytes
	}
	left := a.recv.Left()
	if !left {
		a.recv.Rest()
	}
	busy := more || r.closely >= closeRun
	a.role.Unlock()
	switch keep := a.recv.Deliver(); {
	case left && keep:
		a.waited.Store(false)
		a.looks.Add(1) // as if the consumer had polled, which it is about to do
		a.apply(Left)
	case left, busy:
		a.apply(Busy)
	}
	return got.Bytes
}

// apply moves the state on from Shared.
func (a *Attention) apply(e Event) {
	if _, do := next(Shared, e); a.moveFrom(Shared, e) && do == Dedicate {
		a.dedicate()
	}
}
