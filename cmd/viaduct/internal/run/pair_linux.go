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

// A pair connects two programs of a host, both run under viaduct run. Each program gets an end of a
// unix stream socket instead of the TCP socket, so that nothing is relayed. The connecting
// program's supervisor makes the pair and passes an end to the listening program's supervisor (see
// rendezvous). The other supervisor delivers the end like an arrival of the transport: the
// supervisor opens a loopback connection to the program's listener, and replaces the connection by
// the end when the program accepts.
//
// Calls that unix sockets answer differently than TCP sockets are served here: names, a second
// connect, and the options of TCP and IP (see pairopt).

// A pair is a program's end of a socket pair.
type pair struct {
	// shadow is the TCP socket the program had before, or would have had. The shadow carries no
	// data, only the program's options.
	shadow int
	family int

	// answered is the last answered connect. It is nil after another call of the program, because
	// then the program has the answer.
	answered atomic.Pointer[notify.Call]

	mu  sync.Mutex
	due bool // guarded by mu; the next connect is to succeed
}

// succeed answers a connect with success. The caller holds mu.
func (p *pair) succeed(c *notify.Call) {
	if c.Return(0, 0) == nil {
		p.due = false
		p.answered.Store(c)
	}
}

// repeats reports whether c repeats the last answered connect. If a signal arrives at the same
// moment, the kernel drops the answer and restarts the call, without notice to the supervisor. The
// caller holds mu.
func (p *pair) repeats(c *notify.Call) bool {
	last := p.answered.Swap(nil)
	return last != nil && last.TID == c.TID && last.Args == c.Args
}

// maxLookedThrough is how many descriptors of a program are checked before a replacement.
const maxLookedThrough = 4096

// pairs holds the pairs of the program, by the cookie of the program's end.
type pairs struct {
	used atomic.Bool // set with the first pair; without pairs, calls need no look-up

	mu    sync.Mutex
	m     map[uint64]*pair    // guarded by mu
	kept  map[uint64]*pairEnd // guarded by mu; by the cookie of the program's TCP socket
	sweep bool                // guarded by mu; the goroutine of sweepPairs runs
}

// pairSweep is how often the supervisor looks for pairs the program has closed.
const pairSweep = time.Second

// addPair records an end and the end's names. The pair owns the shadow.
func (s *supervisor) addPair(cookie uint64, p *pair, n names, role string) {
	defer s.watchPair(cookie, n, role) // runs after the locks were released
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

// watchPair lists an end in "viaduct ps". Bytes of pairs are not counted, because the supervisor
// does not relay pairs.
func (s *supervisor) watchPair(cookie uint64, n names, role string) {
	s.e.Status.Server().Watch(status.Source{
		Report: func(bool) status.Conn {
			return status.Conn{Transport: "pair", Role: role, Local: n.local.String(),
				Remote: n.remote.String(), Path: "unix socket pair", State: "open", Credits: -1,
				Why: "both programs are on this host and run with --same-host"}
		},
		Ended: func() bool {
			s.pairs.mu.Lock()
			defer s.pairs.mu.Unlock()
			return s.pairs.m[cookie] == nil
		},
	})
}

// forgetPair removes the record of an end absent from the program. It returns the pair, or nil if
// there is no record.
func (s *supervisor) forgetPair(cookie uint64) *pair {
	s.pairs.mu.Lock()
	p := s.pairs.m[cookie]
	delete(s.pairs.m, cookie)
	s.pairs.mu.Unlock()
	s.names.remove(cookie)
	return p
}

// close closes the shadow, after a running option call.
func (p *pair) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	unix.Close(p.shadow)
	p.shadow = -1
}

// sweepPairs removes the ends closed by the program, until none is left. No event reports a close.
// An end must be missing in two lists of the kernel, because the kernel makes a long list in
// pieces, and sockets change their place between pieces.
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

// findPair returns the pair of a call's first argument, nil if the argument is no pair. It costs a
// system call. The error reports a lack of descriptors in this process.
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

// goesOn records a further call of the program on the end with a cookie. The program therefore has
// the answer of the connect.
func (ps *pairs) goesOn(cookie uint64) {
	if !ps.used.Load() {
		return
	}
	if p := ps.get(cookie); p != nil {
		p.answered.Store(nil)
	}
}

// findPairShort is findPair with the spare descriptors. It may wait.
func (s *supervisor) findPairShort(c *notify.Call) (p *pair, err error) {
	s.spare.use(func() bool {
		p, err = s.findPair(c)
		return err == nil
	})
	return p, err
}

// connectPaired serves a connect of a socket already replaced by a pair. For any other socket,
// connectPaired returns false and does not answer.
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
		p.due = true // this answer may be lost like the one before
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

// errNoPair reports a place without a listening supervisor.
var errNoPair = errors.New("no viaduct run --same-host listens there")

// connectPair connects a socket of the program by a pair. If done is false, the socket must be
// connected in another way; why is the reason. If another connect of the socket is in progress,
// connectPair does nothing and returns the other dial as before.
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
	// After a signal, the program may already have connected the socket. Later calls wait for the
	// present connect.
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
	p.mu.Lock() // the connect of another thread must wait
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

// A pairEnd is the connecting program's end of a pair, before delivery to the program.
type pairEnd struct {
	fd     int
	cookie uint64
	pair   *pair
	names  names
	drops  *time.Timer // set while the end is kept
}

// newPairEnd makes a pair and passes the other end to the listening program's supervisor. The
// listening program then sees a connection. Therefore newPairEnd first allocates all resources of
// the near end.
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

// drop closes an undeliverable pair.
func (e *pairEnd) drop() {
	unix.Close(e.fd)
	if e.pair.shadow >= 0 {
		unix.Close(e.pair.shadow)
	}
}

// keptPairTime is how long an end is kept if a signal has interrupted the connect. A program that
// connects again does so at once, as soon as it has a processor.
const keptPairTime = 5 * time.Second

// keep keeps an end for the next connect of the socket with a cookie, after a signal has
// interrupted the connect. It is needed because the listening program already has the connection.
func (ps *pairs) keep(cookie uint64, e *pairEnd) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.kept == nil {
		ps.kept = map[uint64]*pairEnd{}
	}
	if old := ps.kept[cookie]; old != nil { // an end from a connect to another address
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

// takeKept returns the kept end of a socket. It returns nil if there is none, or if the program now
// connects to another address.
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

// replaceable reports whether a thread's descriptor may be replaced by another file, such as the
// end of a pair, and returns the old file's flags. Nothing else in the process may refer to the old
// file: no second descriptor, and no registration with epoll. Copies given to other processes by
// fork are not found.
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
		return 0, errors.New("the kernel does not report the flags of descriptors")
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

// fieldOf returns the value of a field in a file of lines, or "".
func fieldOf(b []byte, name string) string {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(name)); ok {
			return strings.TrimSpace(string(v))
		}
	}
	return ""
}
