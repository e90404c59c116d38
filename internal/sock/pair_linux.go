package sock

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
)

// A Pair belongs to all connections that one process has dialled to a listening address of another.
// It has a list of connections with arrivals for each side (see [shm.Pair]), and a bell, an AF_UNIX
// stream. The dialer makes the pair with the second connection to the address, because a single
// connection needs none, and sends the pair with the commitment of that connection. Later
// commitments name the pair and a slot. Each connection still has its own bell, which wakes a
// goroutine that waits for this connection alone, and reports the death of the peer's process.
//
// A pair ends when it has no connections for a while, or when its bell fails. The connections then
// use their own bells.
type Pair struct {
	id    pairID
	mem   *shm.Pair
	bell  int
	in    instance           // where the goroutine of the pair sleeps
	ready func(uintptr) bool // hushes the bell and prepares the sleep; set by Open
	ended atomic.Bool

	once  sync.Once
	drain any

	mu    sync.Mutex
	conns int                        // connections of the pair; guarded by mu
	refs  int                        // connections, goroutines and, until End, the process; guarded by mu
	slots [shm.PairSlots / 64]uint64 // slots in use, at the dialer; guarded by mu
}

// A pairID names a pair. It is random, so that no third process can name the pair.
type pairID [16]byte

// PairSlots is the number of connections of a pair.
const PairSlots = shm.PairSlots

const (
	// lingerTime is how long a pair without connections remains at the dialer.
	lingerTime = 50 * time.Millisecond

	// listenerLingers is how long a pair without connections remains at the listener, unless the
	// dialer ends it: longer than at the dialer, so that no dialer names a pair that the listener
	// has ended.
	listenerLingers = 10 * time.Second

	// announced bounds the time a listener waits for a pair that another connection of the dialer is
	// about to bring.
	announced = 20 * time.Millisecond
)

// joinedPairs are the pairs that dialers have brought.
type joinedPairs struct {
	sync.Mutex
	pairs map[pairID]*Pair
	added chan struct{} // closed by the next addition; nil if nobody waits
}

// partners are the rendezvous with connections dialled by this process.
type partners struct {
	sync.Mutex
	m map[partnerID]*partner
}

// A partnerID names a rendezvous, and the process that listens there.
type partnerID struct {
	name string
	pid  int32
}

// A partner counts the connections to a rendezvous. Its fields are guarded by partners.
type partner struct {
	conns int
	pair  *Pair
}

// A seat is a connection's place in a pair. At the dialer it also counts the connection for the
// partner.
type seat struct {
	id      partnerID
	partner *partner // nil for a listener
	pair    *Pair    // nil for none
	slot    int
	files   []int // of a new pair, for the listener: the memory and the bell
}

// takeSeat counts a connection to the rendezvous called id, and gives it a slot in the pair, if
// there is one. The second connection makes the pair.
func (ps *partners) takeSeat(id partnerID) *seat {
	ps.Lock()
	defer ps.Unlock()
	q := ps.m[id]
	if q == nil {
		if ps.m == nil {
			ps.m = make(map[partnerID]*partner)
		}
		q = new(partner)
		ps.m[id] = q
	}
	s := &seat{id: id, partner: q}
	q.conns++
	if q.conns == 1 && q.pair == nil {
		return s
	}
	if q.pair != nil && q.pair.ended.Load() {
		q.pair = nil // the connections that use it have their own bells
	}
	if q.pair == nil {
		q.pair, s.files = makePair()
	}
	if p := q.pair; p != nil {
		if slot, ok := p.takeSlot(); ok {
			s.pair, s.slot = p, slot
		}
	}
	return s
}

// leave gives the seat back when the connection has ended.
func (s *seat) leave() {
	closeAll(s.files)
	if s.pair != nil {
		s.pair.leave(s.slot, s.partner != nil)
	}
	if s.partner != nil {
		process.partners.leave(s.id, s.partner)
	}
}

// leave counts the end of a connection of q. It forgets a partner without connections: at once if
// there is no pair, and otherwise after lingerTime.
func (ps *partners) leave(id partnerID, q *partner) {
	ps.Lock()
	defer ps.Unlock()
	q.conns--
	if q.conns > 0 || ps.m[id] != q {
		return
	}
	p := q.pair
	if p == nil || p.ended.Load() {
		delete(ps.m, id)
		return
	}
	time.AfterFunc(lingerTime, func() {
		ps.Lock()
		defer ps.Unlock()
		if q.conns == 0 && q.pair == p && ps.m[id] == q {
			delete(ps.m, id)
			p.End()
		}
	})
}

// makePair returns a new pair, and the descriptors for the listener. The result is nil if the
// process has no descriptor or memory left.
func makePair() (p *Pair, files []int) {
	mem, fd, err := shm.CreatePair()
	if err != nil {
		return nil, nil
	}
	bells, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		unix.Close(fd)
		mem.Close()
		return nil, nil
	}
	p = &Pair{mem: mem, bell: bells[0], refs: 1}
	rand.Read(p.id[:])
	return p, []int{fd, bells[1]}
}

// join returns the pair called id, for a connection accepted by this process. files are the
// memory and the bell of a new pair, or empty. Without files, join waits for another connection
// to bring the pair; if wait is false, the error is ErrWouldBlock instead. The result is nil if
// there is no such pair.
func (j *joinedPairs) join(id pairID, files []int, wait bool) (*Pair, error) {
	j.Lock()
	defer j.Unlock()
	if len(files) == 2 {
		if j.pairs[id] != nil {
			return nil, nil
		}
		mem, err := shm.OpenPair(files[0])
		if err != nil {
			return nil, nil
		}
		p := &Pair{id: id, mem: mem, bell: files[1], conns: 1, refs: 2}
		files[1] = -1
		if j.pairs == nil {
			j.pairs = make(map[pairID]*Pair)
		}
		j.pairs[id] = p
		if j.added != nil {
			close(j.added)
			j.added = nil
		}
		return p, nil
	}
	late := time.NewTimer(announced)
	defer late.Stop()
	for {
		p := j.pairs[id]
		switch {
		case p != nil && p.enter():
			return p, nil
		case p != nil:
			return nil, nil
		case !wait:
			return nil, ErrWouldBlock
		}
		if j.added == nil {
			j.added = make(chan struct{})
		}
		added := j.added
		j.Unlock()
		var over bool
		select {
		case <-added:
		case <-late.C:
			over = true
		}
		j.Lock()
		if over {
			return nil, nil
		}
	}
}

// forget removes p, which may be a pair that this process has dialled.
func (j *joinedPairs) forget(p *Pair) {
	j.Lock()
	defer j.Unlock()
	if j.pairs[p.id] == p {
		delete(j.pairs, p.id)
	}
}

// enter counts a connection of the listener. It returns false if the pair has ended.
func (p *Pair) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended.Load() {
		return false
	}
	p.conns++
	p.refs++
	return true
}

// takeSlot counts a connection of the dialer, and gives it a slot. It returns false if no slot is
// free, or if the pair has ended.
func (p *Pair) takeSlot() (slot int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended.Load() {
		return 0, false
	}
	for i := range p.slots {
		for j := 0; j < 64 && ^p.slots[i] != 0; j++ {
			if p.slots[i]&(1<<j) == 0 {
				p.slots[i] |= 1 << j
				p.conns++
				p.refs++
				return i*64 + j, true
			}
		}
	}
	return 0, false
}

// leave ends a connection's use of the pair. A bit of the slot may still be set: the next connection
// with the slot is then read once without need.
func (p *Pair) leave(slot int, dialed bool) {
	p.mu.Lock()
	p.conns--
	if dialed {
		p.slots[slot/64] &^= 1 << (slot % 64)
	} else if p.conns == 0 && !p.ended.Load() {
		time.AfterFunc(listenerLingers, p.endIfIdle)
	}
	p.mu.Unlock()
	p.Release()
}

// End ends the pair for both processes. A second call does nothing.
func (p *Pair) End() { p.end(false) }

func (p *Pair) endIfIdle() { p.end(true) }

func (p *Pair) end(ifIdle bool) {
	p.mu.Lock()
	if ifIdle && p.conns > 0 || p.ended.Load() {
		p.mu.Unlock()
		return
	}
	p.ended.Store(true)
	_ = unix.Shutdown(p.bell, unix.SHUT_RDWR)
	if p.in.f != nil {
		p.in.f.SetReadDeadline(time.Unix(1, 0)) // ends Sleep even if the peer's bell is no stream
	}
	p.mu.Unlock()
	process.joined.forget(p)
	p.Release()
}

// Hold keeps the pair's memory and bell until Release, for a goroutine of the pair.
func (p *Pair) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refs++
}

// Release ends a use of the pair. The last one frees it.
func (p *Pair) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs--; p.refs > 0 {
		return
	}
	p.in.close()
	unix.Close(p.bell)
	p.mem.Close()
}

// Drainer returns the result of the first call of make, which serves the pair.
func (p *Pair) Drainer(make func() any) any {
	p.once.Do(func() { p.drain = make() })
	return p.drain
}

// Open prepares Sleep. It returns false if the process has no descriptor left.
func (p *Pair) Open() bool {
	// Created once, because each creation allocates.
	p.ready = func(uintptr) bool { return p.ended.Load() || !p.hush() || !p.mem.Sleep() }
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in.open(p.bell, arrived)
}

// Ended reports whether the pair has ended.
func (p *Pair) Ended() bool { return p.ended.Load() }

// Next is Next of [shm.Pair].
func (p *Pair) Next() (slot int, ok bool) { return p.mem.Next() }

// Sleep sleeps until the peer has told of an arrival. It returns false if the pair has ended.
func (p *Pair) Sleep() bool {
	err := p.in.raw.Read(p.ready)
	p.mem.Wake()
	return err == nil && !p.ended.Load()
}

// hush empties the bell. It returns false if the peer has hung up.
func (p *Pair) hush() bool {
	var b [64]byte
	for {
		switch n, err := recv(p.bell, b[:], unix.MSG_DONTWAIT); {
		case err == ErrWouldBlock:
			return true
		case err != nil || n == 0:
			p.End()
			return false
		case n < len(b):
			return true
		}
	}
}

// Tell tells the peer that the connection of slot has an arrival. It returns false if the pair has
// ended.
func (p *Pair) Tell(slot int) bool {
	if p.mem.Tell(slot) {
		if _, err := send(p.bell, []byte{0}); err != nil && err != ErrWouldBlock {
			p.End()
		}
	}
	return !p.ended.Load()
}
