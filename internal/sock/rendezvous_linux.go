package sock

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
)

// A rendezvous receives the requests for shared memory to a TCP listener from dialers of the same
// host. A dialer makes the request as soon as the TCP connection exists, so that the request has
// arrived when the accepting goroutine wakes. A request is served by one of three goroutines:
//   - the accepting goroutine, right after the accept, and whenever a request wakes the goroutine
//     from a wait for connections
//   - the goroutine of serve, if no goroutine is about to accept but requests for accepted
//     connections may arrive
//   - a separate goroutine, if the request cannot be answered at once
type rendezvous struct {
	sockets []meetingSocket
	in      instance // the epoll instance where serve sleeps

	mu sync.Mutex
	// Accepted connections that nothing was read from, by the peer's address; guarded by mu.
	conns map[netip.AddrPort]*conn
	// Closed by the next add; nil if no goroutine waits for an accept; guarded by mu.
	added  chan struct{}
	armed  bool // requests wake serve; guarded by mu
	closed bool // guarded by mu
}

// A meetingSocket is a listening AF_UNIX socket of a rendezvous, with an abstract name or with a
// name in a directory.
type meetingSocket struct {
	fd   int
	path string // "" for an abstract name
}

// openRendezvous creates the rendezvous of a listening address. It returns nil on failure, for
// example because another process has the name. dir is the directory for processes of other network
// namespaces, or "".
func openRendezvous(at netip.AddrPort, dir string) *rendezvous {
	v := &rendezvous{conns: make(map[netip.AddrPort]*conn)}
	if fd, err := listenMeeting(meetingName(at)); err == nil {
		v.sockets = append(v.sockets, meetingSocket{fd: fd})
	}
	if dir != "" && checkMeetingDir(dir) == nil {
		for _, p := range meetingPaths(dir, at) {
			if fd, err := listenMeeting(p); err == nil {
				v.sockets = append(v.sockets, meetingSocket{fd, p})
			}
		}
	}
	if len(v.sockets) == 0 {
		return nil
	}
	ok := v.in.open(v.sockets[0].fd, 0)
	for _, m := range v.sockets[1:] {
		ok = ok && EpollCtl(v.in.epfd, unix.EPOLL_CTL_ADD, m.fd, &unix.EpollEvent{})
	}
	if !ok {
		v.close()
		return nil
	}
	go v.serve()
	return v
}

func (v *rendezvous) close() {
	v.mu.Lock()
	v.closed = true
	for _, m := range v.sockets {
		unix.Close(m.fd)
		if m.path != "" {
			unix.Unlink(m.path)
		}
	}
	v.mu.Unlock()
	v.in.close()
}

// wake makes requests wake the goroutine asleep at the epoll instance epfd, where connections
// arrive.
func (v *rendezvous) wake(epfd int) {
	for _, m := range v.sockets {
		EpollCtl(epfd, unix.EPOLL_CTL_ADD, m.fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	}
}

// askLocked sets which events of the meeting sockets wake serve: EPOLLIN for requests, or 0 for
// none. The result is false if the kernel refuses the change for a socket. The caller holds mu.
func (v *rendezvous) askLocked(events uint32) bool {
	ok := true
	for _, m := range v.sockets {
		ok = v.in.ask(m.fd, events) && ok
	}
	return ok
}

// add makes an accepted connection available to requests. Without a meeting directory, add ignores
// a connection unless isHere holds, because no dialer can request memory then.
func (v *rendezvous) add(o *conn) {
	from := addrPort(o.remote)
	if !isHere(addrPort(o.local), from) && v.sockets[len(v.sockets)-1].path == "" {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	o.meet = v
	v.conns[from] = o
	if v.added != nil {
		close(v.added)
		v.added = nil
	}
}

// remove makes o unavailable to requests. It does nothing if o is not available.
func (v *rendezvous) remove(o *conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if from := addrPort(o.remote); v.conns[from] == o {
		delete(v.conns, from)
	}
}

// welcome serves the waiting requests after o was accepted. Later requests for accepted connections
// wake serve. welcome does nothing if add has ignored o.
func (v *rendezvous) welcome(o *conn) {
	if o.meet == nil {
		return
	}
	v.serveNow()
	v.mu.Lock()
	more := len(v.conns) > 0
	v.mu.Unlock()
	if more {
		v.hear()
	}
}

// serveNow serves the waiting requests. If the process has no descriptor left to accept a request,
// serve continues later.
func (v *rendezvous) serveNow() {
	if !v.drain() {
		v.hear()
	}
}

// hear makes requests wake serve, until serve finds no accepted connection left.
func (v *rendezvous) hear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.armed && !v.closed {
		v.armed = v.askLocked(unix.EPOLLIN)
	}
}

// serve serves requests until the rendezvous is closed. It sleeps at first. After hear, a request
// wakes serve as long as there are accepted connections a request can name.
func (v *rendezvous) serve() {
	_ = v.in.raw.Read(func(uintptr) bool {
		for !v.drain() {
			time.Sleep(5 * time.Millisecond) // no descriptors
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.conns) == 0 && v.armed && !v.closed {
			v.armed = !v.askLocked(0)
		}
		return v.closed
	})
}

// drain serves the waiting requests. It returns false if a request cannot be accepted, usually
// because the process has no descriptor left, and true after close.
func (v *rendezvous) drain() bool {
	for _, m := range v.sockets {
		for {
			fd, err := v.take(m)
			if err == unix.EAGAIN {
				break
			}
			if err != nil {
				return err == net.ErrClosed
			}
			if a := (&asking{v: v, c: &conn{s: &Socket{carrier: carrier{fd: fd}}}, proves: m.path != ""}); !a.serve(false) {
				go a.serve(true)
			}
		}
	}
	return true
}

// take accepts a dialer's connection to m without waiting. The error is EAGAIN if there is none,
// and net.ErrClosed after close.
func (v *rendezvous) take(m meetingSocket) (fd int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		if v.closed {
			return -1, net.ErrClosed
		}
		n, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(m.fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR, unix.ECONNABORTED:
		default:
			return -1, e
		}
	}
}

// An asking is a request in service. An asking records how far the service has come, so that
// another goroutine can continue with serve.
type asking struct {
	v      *rendezvous
	c      *conn // the connection to the dialer; its descriptor becomes the bell
	proves bool  // both ends prove that they have the TCP connection

	got     bool // m and files have been read
	m       meeting
	files   []int // the memory; the bell for room, -1 after adopt; with proves, the dialer's TCP socket
	o       *conn // the requested connection; nil until it is found
	mem     *shm.Memory
	rings   *rings // created from mem
	decided func() // ends the wait of the users of o; nil before the grant

	commits   bool // the dialer has committed
	seat      *seat
	pair      pairID
	slot      int
	pairFiles []int // memory and bell of a new pair
}

// serve continues the service and reports whether the request is finished. It returns false only if
// wait is false, and the service would have to wait longer than the 100 us of Soon.
func (a *asking) serve(wait bool) bool {
	if err := a.request(wait); err == ErrWouldBlock {
		return false
	} else if err != nil {
		return a.refuse(err)
	}
	if a.o == nil {
		if a.o = a.v.find(a.m, wait); a.o == nil {
			if !wait {
				return false
			}
			return a.refuse(errors.New(whyNotAccepted))
		}
		if err := a.grant(wait); err == ErrWouldBlock {
			a.o = nil
			return false
		} else if err != nil {
			a.o.s.setWhy(err.Error())
			return a.refuse(err)
		}
	}
	committing, err := a.commitment(wait)
	switch {
	case err == ErrWouldBlock:
		return false
	case !committing:
		a.o.s.setWhy("the peer has left the rendezvous")
		return a.leave()
	}
	a.c.s.CloseArrivals()
	a.rings.seat = a.seat
	if err := a.o.s.adopt(a.rings); err != nil {
		// The dialer has committed, so the only way to report the error is to end the connection.
		a.leave()
		a.o.Close()
		return true
	}
	a.files[1] = -1
	closeAll(a.files)
	closeAll(a.pairFiles)
	a.decided()
	a.v.remove(a.o)
	return true
}

// refuse sends the dialer the reason why its request fails, and ends the service. It returns true.
func (a *asking) refuse(err error) bool {
	answer(a.c.s.fd, err)
	return a.leave()
}

// leave releases the resources of a and closes the dialer's connection. It returns true.
func (a *asking) leave() bool {
	if a.mem != nil {
		a.mem.Close()
	}
	if a.decided != nil {
		a.decided()
	}
	if a.seat != nil {
		a.seat.leave()
	}
	closeAll(a.files)
	closeAll(a.pairFiles)
	a.c.Close()
	return true
}

func closeAll(files []int) {
	for _, fd := range files {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// receive reads from the dialer by means of call. Without wait, receive polls for up to 100 us, and
// returns ErrWouldBlock if nothing arrives. With wait, receive sleeps, and returns
// os.ErrDeadlineExceeded after timeout.
func (a *asking) receive(p []byte, call func(fd int, p []byte) (int, error), wait bool, timeout time.Duration) (n int, err error) {
	switch {
	case wait && !a.c.s.OpenArrivals():
		// There is no descriptor to sleep with. The service must still succeed: a dialer with a
		// grant of shared memory may have committed, and the two ends have to agree.
		for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
			if n, err = call(a.c.s.fd, p); err != ErrWouldBlock {
				return n, err
			}
			if time.Now().After(end) {
				return 0, os.ErrDeadlineExceeded
			}
		}
	case wait:
		a.c.SetReadDeadline(time.Now().Add(timeout))
		return a.c.receive(p, reading{call, nil}, false)
	}
	Soon(func() bool {
		n, err = call(a.c.s.fd, p)
		return err != ErrWouldBlock
	})
	return n, err
}

// request reads the request with the descriptors, unless an earlier call has done so.
func (a *asking) request(wait bool) error {
	if a.got {
		return nil
	}
	var b [requestLen]byte
	n, err := a.receive(b[:], func(fd int, p []byte) (n int, err error) {
		n, a.files, err = recvRights(fd, p, 3)
		return n, err
	}, wait, requestTimeout)
	if err != nil {
		return err
	}
	if a.m, err = parseMeeting(b[:n]); err != nil {
		return err
	}
	want := 2
	if a.proves {
		want = 3
	}
	if len(a.files) != want {
		return errors.New("no memory came with the request, or this process has no descriptor left")
	}
	a.got = true
	return nil
}

// find returns the accepted connection whose ends m names, or nil if there is none. With wait, find
// waits up to acceptTimeout for the accept.
func (v *rendezvous) find(m meeting, wait bool) *conn {
	var late <-chan time.Time
	if wait {
		t := time.NewTimer(acceptTimeout)
		defer t.Stop()
		late = t.C
	}
	for {
		v.mu.Lock()
		o := v.conns[m.from]
		if v.added == nil {
			v.added = make(chan struct{})
		}
		added := v.added
		v.mu.Unlock()
		if o != nil && addrPort(o.local) == m.to {
			return o
		}
		if o != nil || !wait {
			return nil
		}
		select {
		case <-added:
		case <-late:
			return nil
		}
	}
}

// grant checks the whole request, maps the memory, and permits the dialer to commit. The error is
// ErrWouldBlock if an earlier grant for the connection is undecided and wait is false.
func (a *asking) grant(wait bool) (err error) {
	if a.decided, err = a.o.s.decide(wait); err != nil {
		return err
	}
	if a.proves {
		_, err = SameUser(a.c.s.fd)
	} else {
		err = a.checkDialer()
	}
	if err != nil {
		return err
	}
	if a.mem, err = shm.Open(a.files[0], a.m.ring); err != nil {
		return err
	}
	a.rings = newRings(a.mem, false, a.c.s.fd, a.files[1])
	a.rings.in.Ask() // a reader may be asleep; see adopt
	if !a.proves {
		answer(a.c.s.fd, nil)
		return nil
	}
	if err := prove(a.o.s.fd, a.files[2], a.m.to, a.m.from); err != nil {
		return err
	}
	answer(a.c.s.fd, nil, a.o.s.fd)
	return nil
}

// checkDialer returns an error unless the dialer has this process's user, who also owns the
// dialer's end of the TCP connection. The error is net.ErrClosed if the connection is closed here.
func (a *asking) checkDialer() error {
	uid, err := SameUser(a.c.s.fd)
	if err != nil {
		return err
	}
	s := a.o.s
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	return checkOwner(s.fd, a.m.from, a.m.to, uid)
}

// commitment reports whether the dialer has committed, and finds the connection's seat in a pair.
// With wait, commitment waits up to commitTimeout. The result is false if the dialer closes the
// connection in order to use TCP.
func (a *asking) commitment(wait bool) (bool, error) {
	if !a.commits {
		// One byte, because the bytes after a commitment may already be rings of the bell.
		var b [1]byte
		n, err := a.receive(b[:], func(fd int, p []byte) (n int, err error) {
			n, a.pairFiles, err = recvRights(fd, p, 2)
			return n, err
		}, wait, commitTimeout)
		if n != 1 || err != nil {
			return false, err
		}
		switch b[0] {
		case committed:
			return true, nil
		case committedPair:
		default:
			return false, nil
		}
		var c [seatLen]byte
		if n, err := read(a.c.s.fd, c[:]); n != len(c) || err != nil {
			return false, err
		}
		a.commits = true
		a.pair = pairID(c[:])
		a.slot = int(binary.BigEndian.Uint16(c[len(a.pair):]))
	}
	if a.slot >= shm.PairSlots {
		return true, nil
	}
	p, err := process.joined.join(a.pair, a.pairFiles, wait)
	if err != nil {
		return false, err
	}
	if p != nil {
		a.seat = &seat{pair: p, slot: a.slot}
	}
	return true, nil
}

// answer sends a dialer the grant, if err is nil, or the reason of the refusal. answer ignores
// errors, because a dialer does not commit without an answer.
func answer(fd int, err error, rights ...int) {
	var b [answerLen]byte
	b[0], b[1] = granted, pairsOffered
	if err != nil {
		b[0] = refused
		b[1] = byte(copy(b[2:], err.Error()))
	}
	if len(rights) == 0 {
		_, _ = send(fd, b[:])
		return
	}
	_ = unix.Sendmsg(fd, b[:], unix.UnixRights(rights...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}
