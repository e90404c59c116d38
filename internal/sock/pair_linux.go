package sock

import (
	"crypto/rand"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
)

// A Pair is what this process shares with another one for all connections that one of the two has
// dialled to the other: a [shm.Board] with the connections that have news, and one bell, an
// AF_UNIX stream that also tells of the other process's death. Many connections with small
// messages cost few wake-ups so, where each with a bell of its own costs one for each message.
//
// A connection can always do without: it has its own bell, and uses that when there is no Pair,
// no slot is free, or the Pair has ended.
type Pair struct {
	board *shm.Board
	fd    int      // the bell
	bell  *os.File // the same
	raw   syscall.RawConn
	ready func(uintptr) bool // awake, once: a method value is allocated
	slept uint32             // wake-ups since the bell was last emptied; the sleeper's
	gone  atomic.Bool        // the other process has hung up, or this one has given up

	id     pairID
	peer   peerKey     // of a Pair that this process has made
	taken  shm.SlotSet // guarded by pairs.mu
	users  int         // connections and requests; guarded by pairs.mu
	offer  []int       // descriptors for the other process until it has them; guarded by pairs.mu
	linger *time.Timer // closes a Pair without users; guarded by pairs.mu
}

// A pairID is the random name by which the maker refers to a Pair that the other process has.
type pairID [16]byte

// A peerKey is what a dialer knows of the process that answers: at which rendezvous, and its pid. It
// only saves making a Pair: what is not known at the other end is not used.
type peerKey struct {
	name string
	pid  int32
}

// pairTime is how long a Pair without connections is kept for the next one. The process that has
// not made it keeps it for twice as long.
const pairTime = 50 * time.Millisecond

// emptyBell is after how many sleeps a bell is emptied. There is at most one ring for each, and a
// bell holds more than 200. Each read of a bell would also wake the poller of the other process,
// which is told when there is room.
const emptyBell = 64

// pairs has all Pairs of this process: a connection that is set up has to find the one that others
// use already.
var pairs struct {
	mu   sync.Mutex
	made map[peerKey]*Pair // guarded by mu
	got  map[pairID]*Pair  // guarded by mu
}

var errNoSlot = errors.New("no slot of the pair is free")

// newPair makes the Pair of a Board and a bell, which belong to it then.
func newPair(board *shm.Board, bell int) (*Pair, error) {
	unix.SetNonblock(bell, true)
	p := &Pair{board: board, fd: bell, bell: os.NewFile(uintptr(bell), "pair")}
	raw, err := p.bell.SyscallConn()
	if err != nil {
		p.bell.Close()
		return nil, err
	}
	p.raw, p.ready = raw, p.awake
	return p, nil
}

// makePair makes a Pair to be offered to a process.
func makePair(peer peerKey) (p *Pair, err error) {
	board, fd, err := shm.CreateBoard()
	if err != nil {
		return nil, err
	}
	bells, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if p, err = newPair(board, bells[0]); err != nil {
		closeAll([]int{fd, bells[1]})
		return nil, err
	}
	p.peer, p.offer = peer, []int{fd, bells[1]}
	rand.Read(p.id[:])
	return p, nil
}

// pairWith returns the Pair with a process and a slot in it, which is the caller's, for a connection
// that is dialled. If the other process may not have the Pair yet, files are descriptors for the
// request, for the caller to close. p is nil if there can be none.
func pairWith(peer peerKey) (p *Pair, slot int, files []int) {
	pairs.mu.Lock()
	defer pairs.mu.Unlock()
	p = pairs.made[peer]
	if p != nil && (p.gone.Load() || len(p.offer) == 0 && hungUp(p.fd)) {
		p.forgetLocked()
		p = nil
	}
	if p == nil {
		var err error
		if p, err = makePair(peer); err != nil {
			return nil, 0, nil
		}
		if pairs.made == nil {
			pairs.made = make(map[peerKey]*Pair)
		}
		pairs.made[peer] = p
	}
	if slot = p.board.Free(&p.taken); slot < 0 {
		return nil, 0, nil
	}
	for _, fd := range p.offer { // another connection may confirm the Pair before these are sent
		fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(files)
			return nil, 0, nil
		}
		files = append(files, fd)
	}
	p.takeLocked(slot)
	return p, slot, files
}

// confirm notes that the other process has the Pair, or does not know it.
func (p *Pair) confirm(known bool) {
	pairs.mu.Lock()
	defer pairs.mu.Unlock()
	switch {
	case !known:
		p.forgetLocked() // those who use it go on
	case p.offer != nil:
		closeAll(p.offer)
		p.offer = nil
	}
}

// joinPair takes a slot of a Pair that a dialer names in its request. files are the descriptors that
// came with the request, for a Pair that may be new; they stay the caller's.
func joinPair(id pairID, slot int, files []int) (*Pair, error) {
	if err := shm.CheckSlot(slot); err != nil {
		return nil, err
	}
	pairs.mu.Lock()
	defer pairs.mu.Unlock()
	p := pairs.got[id]
	if p == nil {
		if len(files) != 2 {
			return nil, errors.New("the pair is not known")
		}
		board, err := shm.OpenBoard(files[0])
		if err != nil {
			return nil, err
		}
		bell, err := unix.FcntlInt(uintptr(files[1]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		if p, err = newPair(board, bell); err != nil {
			return nil, err
		}
		if p.id = id; pairs.got == nil {
			pairs.got = make(map[pairID]*Pair)
		}
		pairs.got[id] = p
	}
	if p.gone.Load() || p.taken[slot/64]>>(slot%64)&1 != 0 {
		p.lingerLocked()
		return nil, errNoSlot
	}
	p.takeLocked(slot)
	return p, nil
}

func (p *Pair) takeLocked(slot int) {
	p.taken[slot/64] |= 1 << (slot % 64)
	p.users++
	p.board.Hold(slot)
}

// leave gives a slot back. Nothing is told by it any more.
func (p *Pair) leave(slot int) {
	pairs.mu.Lock()
	defer pairs.mu.Unlock()
	p.taken[slot/64] &^= 1 << (slot % 64)
	p.users--
	p.board.Release(slot)
	p.lingerLocked()
}

// lingerLocked closes a Pair that stays without users.
func (p *Pair) lingerLocked() {
	switch {
	case p.users > 0:
		return
	case p.gone.Load():
		p.forgetLocked()
		p.bell.Close() // again if the timer runs, which does no harm
		return
	case p.linger != nil:
		return
	}
	keep := pairTime
	if p.peer == (peerKey{}) {
		keep *= 2
	}
	p.linger = time.AfterFunc(keep, func() {
		pairs.mu.Lock()
		defer pairs.mu.Unlock()
		p.linger = nil
		if p.users == 0 {
			p.forgetLocked()
			p.bell.Close()
		}
	})
}

// forgetLocked has no other connection use the Pair.
func (p *Pair) forgetLocked() {
	closeAll(p.offer)
	p.offer = nil
	if pairs.made[p.peer] == p {
		delete(pairs.made, p.peer)
	}
	if pairs.got[p.id] == p {
		delete(pairs.got, p.id)
	}
}

// End ends the Pair for both processes: its connections use their own bells from then on.
func (p *Pair) End() {
	p.gone.Store(true)
	_ = p.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	pairs.mu.Lock()
	defer pairs.mu.Unlock()
	p.forgetLocked()
	p.lingerLocked()
}

// tell tells the other process that a connection has news. The connection has its slot.
func (p *Pair) tell(slot int) {
	if p.board.Tell(slot) {
		_, _ = send(p.fd, []byte{0}) // if the bell is full or has ended the other process is awake, or gone
	}
}

// Again has this process look at a connection.
func (p *Pair) Again(slot int) {
	if p.board.Again(slot) {
		_ = p.bell.SetReadDeadline(time.Unix(1, 0))
	}
}

// Take is [shm.Board.Take]. One goroutine at a time takes and sleeps.
func (p *Pair) Take(f func(slot int) bool) (n int) { return p.board.Take(f) }

// Sleep sleeps until Take may find something. It is false if the Pair has ended.
func (p *Pair) Sleep() bool {
	err := p.raw.Read(p.ready)
	p.board.Awake()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // by Again
		_ = p.bell.SetReadDeadline(time.Time{})
	case err != nil, p.gone.Load():
		p.gone.Store(true)
		return false
	}
	if p.slept++; p.slept >= emptyBell {
		p.slept = 0
		_ = p.raw.Control(func(fd uintptr) {
			var b [2 * emptyBell]byte
			_, _ = recv(int(fd), b[:], unix.MSG_DONTWAIT)
		})
	}
	return true
}

// awake reports whether the sleeper is to stay awake. The runtime calls it before the sleep, and again
// for each ring and for the end of the bell. It does not tell of an end that came before: this finds it.
func (p *Pair) awake(fd uintptr) bool {
	if !p.board.Sleep() {
		return true
	}
	if hungUp(int(fd)) {
		p.gone.Store(true)
	}
	return p.gone.Load()
}

// hungUp reports whether the other end of a bell was closed, whatever is unread in it.
func hungUp(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds[:], 0)
	return n > 0 || err != nil && err != unix.EINTR
}
