//go:build linux && (amd64 || arm64)

package run

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
	"viaduct/internal/sockdiag"
	"viaduct/internal/status"
)

// A pair connects two programs of one host that both run this way: each gets an
// end of a unix stream socket in place of its TCP socket, and nothing is relayed.
// The connecting program's supervisor makes the pair and passes one end to the
// listening program's, see rendezvous. That brings it to an accept call as it
// brings an arrival of the transport: by a loopback connection to the program's
// listener, which is replaced when it is accepted.
//
// What a unix socket answers otherwise than a TCP socket is served here: names,
// a second connect, and the options of TCP and IP, see pairopt.

// A pair is one end of a socket pair that a program has.
type pair struct {
	// shadow is the TCP socket that the program had before, or would have had. It
	// carries nothing; options are set on it and read from it.
	shadow int
	family int

	// told is the connect that was answered last, until another call of the program
	// shows that it has the answer.
	told atomic.Pointer[notify.Call]

	mu  sync.Mutex
	due bool // guarded by mu; the next connect is the one that succeeds
}

// succeed answers a connect with success. [p.mu]
func (p *pair) succeed(c *notify.Call) {
	if c.Return(0, 0) == nil {
		p.due = false
		p.told.Store(c)
	}
}

// repeats reports whether a connect is the one that was answered last, made again. The
// kernel drops an answer if a signal comes in the same moment, says nothing of that to
// the supervisor, and restarts the call. [p.mu]
func (p *pair) repeats(c *notify.Call) bool {
	told := p.told.Swap(nil)
	return told != nil && told.TID == c.TID && told.Args == c.Args
}

// maxLookedThrough is how many descriptors of a program are looked through
// before one is replaced.
const maxLookedThrough = 4096

// pairs are those of the program, by the cookie of its end.
type pairs struct {
	used atomic.Bool // there was one: until then calls need not look

	mu    sync.Mutex
	m     map[uint64]*pair    // guarded by mu
	kept  map[uint64]*pairEnd // guarded by mu; by the cookie of the program's TCP socket
	sweep bool                // guarded by mu; a goroutine looks for ends
}

// pairSweep is how often pairs are looked for whose sockets the program has closed.
const pairSweep = time.Second

// add notes an end, and the names it shows. The pair takes the shadow over.
func (s *supervisor) addPair(cookie uint64, p *pair, n names, role string) {
	defer s.watchPair(cookie, n, role) // runs after the locks were given back
	n.family = p.family
	s.names.set(cookie, n)
	ps := &s.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.m == nil {
		ps.m = map[uint64]*pair{}
	}
	ps.m[cookie] = p
	ps.used.Store(true)
	if !ps.sweep {
		ps.sweep = true
		go s.sweepPairs()
	}
}

// watchPair shows an end to "viaduct ps". What passes is between the two
// programs and is not counted.
func (s *supervisor) watchPair(cookie uint64, n names, role string) {
	s.e.Status.Server().Watch(status.Source{
		Report: func(bool) status.Conn {
			return status.Conn{Transport: "pair", Role: role, Local: n.local.String(), Remote: n.remote.String(), Path: "unix socket pair", State: "open", Credits: -1,
				Why: "both programs are on this host and run with --same-host"}
		},
		Ended: func() bool {
			s.pairs.mu.Lock()
			defer s.pairs.mu.Unlock()
			return s.pairs.m[cookie] == nil
		},
	})
}

// forgetPair forgets an end that the program does not have.
func (s *supervisor) forgetPair(cookie uint64) *pair {
	s.pairs.mu.Lock()
	p := s.pairs.m[cookie]
	delete(s.pairs.m, cookie)
	s.pairs.mu.Unlock()
	s.names.remove(cookie)
	return p
}

// close waits for the option call that uses the shadow.
func (p *pair) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	unix.Close(p.shadow)
	p.shadow = -1
}

// sweepPairs forgets the ends that the program has closed, until none is left:
// nothing tells when it closes one. One that is missing has to be missing in two lists
// of the kernel's: a long one is made in pieces, between which sockets change places.
func (s *supervisor) sweepPairs() {
	ps := &s.pairs
	var missing map[uint64]bool
	for {
		time.Sleep(pairSweep)
		ps.mu.Lock()
		known := make([]uint64, 0, len(ps.m))
		for cookie := range ps.m {
			known = append(known, cookie)
		}
		if len(known) == 0 {
			ps.sweep = false
			ps.mu.Unlock()
			return
		}
		ps.mu.Unlock()
		live, err := sockdiag.UnixSockets()
		if err != nil {
			continue
		}
		before := missing
		missing = map[uint64]bool{}
		for _, cookie := range known {
			switch {
			case live[cookie]:
			case !before[cookie]:
				missing[cookie] = true
			default:
				if p := s.forgetPair(cookie); p != nil {
					p.close()
				}
			}
		}
	}
}

// findPair returns the pair that a call's first argument names, nil if that is
// none. It costs a system call. The error says that this process has no descriptor left
// to find out.
func (s *supervisor) findPair(c *notify.Call) (*pair, error) {
	if !s.pairs.used.Load() {
		return nil, nil
	}
	fd, err := c.Borrow(int(int32(c.Args[0])))
	if outOfDescriptors(err) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return nil, nil
	}
	return s.pairs.get(cookie), nil
}

func (ps *pairs) get(cookie uint64) *pair {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.m[cookie]
}

// goesOn notes that the program makes other calls of its end with a cookie.
func (ps *pairs) goesOn(cookie uint64) {
	if !ps.used.Load() {
		return
	}
	if p := ps.get(cookie); p != nil {
		p.told.Store(nil)
	}
}

// findPairShort is findPair by the spare descriptors. It may wait.
func (s *supervisor) findPairShort(c *notify.Call) (p *pair, err error) {
	s.spare.use(func() bool {
		p, err = s.findPair(c)
		return err == nil
	})
	return p, err
}

// connectPaired serves a connect of a socket that a pair is in place of already.
func (s *supervisor) connectPaired(c *notify.Call) bool {
	p, err := s.findPair(c)
	if err != nil {
		p, _ = s.findPairShort(c)
	}
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.due:
		p.succeed(c)
	case p.repeats(c):
		p.due = true // this answer may be dropped like the one before
		p.succeed(c)
	default:
		c.Return(0, unix.EISCONN)
	}
	return true
}

// mayPair reports whether connections to a place may become pairs.
func (s *supervisor) mayPair(to netip.AddrPort) bool {
	return s.rules.sameHost(to.Port()) && to.Addr().Zone() == "" && s.carrier.local.has(to.Addr())
}

// errNoPair says that nothing of ours listens at a place.
var errNoPair = errors.New("no viaduct run --same-host listens there")

// connectPair connects a socket of the program by a pair; false says that it is
// to be connected otherwise, and why. If another connect of the socket is under way that
// one is returned, and nothing is done.
func (s *supervisor) connectPair(c *notify.Call, b *borrowed, to netip.AddrPort) (done bool, before *dial, why error) {
	d := &dial{to: to, done: make(chan struct{}), settled: make(chan struct{}), paired: true}
	s.mu.Lock()
	before = s.dials[b.cookie]
	if before != nil || tcpState(b.fd) != tcpClose {
		s.mu.Unlock()
		return false, before, nil
	}
	s.dials[b.cookie] = d
	s.mu.Unlock()
	defer s.settle(b.cookie, d)
	// A signal that came before is one behind which the program may have connected the
	// socket already; whatever comes from now on waits for this connect.
	if !c.Valid() {
		return true, nil, nil
	}
	d.bind(b)
	number := int(int32(c.Args[0]))
	flags, err := replaceable(c.TID, number, b.fd)
	if err != nil {
		return false, nil, err
	}
	e := s.pairs.takeKept(b.cookie, to)
	if e == nil {
		if e, err = newPairEnd(b, d); err != nil {
			return false, nil, err
		}
	}
	nonblock := flags&unix.O_NONBLOCK != 0
	unix.SetNonblock(e.fd, nonblock)
	p := e.pair
	p.due = true
	s.addPair(e.cookie, p, e.names, "dial")
	p.mu.Lock() // another thread's connect of the same socket comes second
	defer p.mu.Unlock()
	switch err := c.InjectAt(e.fd, number, flags&unix.O_CLOEXEC); {
	case err == notify.ErrGone:
		s.forgetPair(e.cookie)
		s.pairs.keep(b.cookie, e)
		return true, nil, nil
	case err != nil:
		s.forgetPair(e.cookie)
		e.drop()
		return false, nil, err
	}
	unix.Close(e.fd)
	s.count("pair")
	s.explain.line(event{Call: "connect", thread: c.TID, Remote: to, Path: "pair"})
	if nonblock {
		c.Return(0, unix.EINPROGRESS)
	} else {
		p.succeed(c)
	}
	return true, nil, nil
}

// A pairEnd is the connecting program's end of a pair on its way to it.
type pairEnd struct {
	fd     int
	cookie uint64
	pair   *pair
	names  names
	drops  *time.Timer // while it is kept
}

// newPairEnd has the listening program's supervisor take the other end of a new pair.
// For the listening program that is a connection: what this end needs is there before.
func newPairEnd(b *borrowed, d *dial) (e *pairEnd, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(ends[1])
	e = &pairEnd{fd: ends[0], pair: &pair{shadow: -1, family: b.family}}
	if e.cookie, err = unix.GetsockoptUint64(e.fd, unix.SOL_SOCKET, unix.SO_COOKIE); err == nil {
		e.pair.shadow, err = unix.FcntlInt(uintptr(b.fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil {
		copyOptions(e.fd, b.fd)
		e.names.remote = d.to
		e.names.local, err = askForPair(d.to, d.heldName(), ends[1])
	}
	if err != nil {
		e.drop()
		return nil, err
	}
	return e, nil
}

// drop ends a pair that the program can't be given.
func (e *pairEnd) drop() {
	unix.Close(e.fd)
	if e.pair.shadow >= 0 {
		unix.Close(e.pair.shadow)
	}
}

// keptPairTime is how long an end is kept that a signal has kept from the program. If
// it connects again it does at once.
const keptPairTime = time.Second

// keep keeps an end for the next connect of the socket with a cookie, which a signal
// has interrupted: for the listening program the connection is made.
func (ps *pairs) keep(cookie uint64, e *pairEnd) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.kept == nil {
		ps.kept = map[uint64]*pairEnd{}
	}
	if old := ps.kept[cookie]; old != nil { // of a connect to another place
		old.drops.Stop()
		old.drop()
	}
	ps.kept[cookie] = e
	e.drops = time.AfterFunc(keptPairTime, func() {
		ps.mu.Lock()
		mine := ps.kept[cookie] == e
		if mine {
			delete(ps.kept, cookie)
		}
		ps.mu.Unlock()
		if mine {
			e.drop()
		}
	})
}

// takeKept is the end that was kept for a socket, nil if there is none, or if the
// program connects to another place now.
func (ps *pairs) takeKept(cookie uint64, to netip.AddrPort) *pairEnd {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	e := ps.kept[cookie]
	if e == nil || e.names.remote != to {
		return nil
	}
	delete(ps.kept, cookie)
	e.drops.Stop()
	return e
}

// replaceable reports whether the descriptor of a thread may be replaced by
// another file, and its flags. It may not if anything in the process still
// refers to the old one: a second descriptor, or a registration with epoll.
// Copies that fork gave to other processes are not seen.
func replaceable(tid, number, fd int) (flags int, err error) {
	if !ownProc() {
		return 0, errors.New("/proc is that of another pid namespace")
	}
	dir := "/proc/" + strconv.Itoa(tid)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	info, err := os.ReadFile(fmt.Sprintf("%s/fdinfo/%d", dir, number))
	if err != nil {
		return 0, errors.New("the process can't be looked into")
	}
	if _, err := fmt.Sscanf(fieldOf(info, "flags:"), "%o", &flags); err != nil {
		return 0, errors.New("the kernel does not tell the flags of descriptors")
	}
	if flags&unix.O_ASYNC != 0 {
		return 0, errors.New("the socket sends signals")
	}
	ents, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return 0, errors.New("the process can't be looked into")
	}
	if len(ents) > maxLookedThrough {
		return 0, errors.New("the process has too many descriptors to look through")
	}
	same := fmt.Sprintf("socket:[%d]", st.Ino)
	registered := fmt.Sprintf(" ino:%x ", st.Ino)
	for _, ent := range ents {
		link, err := os.Readlink(dir + "/fd/" + ent.Name())
		switch {
		case err != nil: // closed meanwhile
		case link == same && ent.Name() != strconv.Itoa(number):
			return 0, errors.New("the socket has a second descriptor")
		case link == "anon_inode:[eventpoll]":
			info, err := os.ReadFile(dir + "/fdinfo/" + ent.Name())
			if err == nil && bytes.Contains(info, []byte(registered)) {
				return 0, errors.New("the socket is registered with epoll")
			}
		}
	}
	return flags, nil
}

// fieldOf is what stands behind a name in a file of lines.
func fieldOf(b []byte, name string) string {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(name)); ok {
			return strings.TrimSpace(string(v))
		}
	}
	return ""
}
