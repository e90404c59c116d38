package sock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
	"viaduct/samehost"
)

// Two processes of a host agree on shared memory before the first byte of a stream. The listening
// side has an AF_UNIX socket in the abstract namespace of the network namespace. The name contains
// the listening address. The dialing side creates the memory, connects to the AF_UNIX socket, names
// the TCP connection and sends the descriptor of the memory. The listening side looks for the TCP
// connection among the accepted connections without any read so far, and answers. Then the dialing
// side commits. After that the AF_UNIX connection serves as a bell (see rings).
//
//	dialer                                   listener
//	request, memory, bell for room  ---->
//	                                <----    grant, or the reason of the refusal
//	commit                          ---->
//
// Before the commitment, the dialing side may decide for TCP: it closes the AF_UNIX connection and
// begins the stream on TCP. The listening side sees either bytes on TCP or the commitment.
//
// Any process can create a socket with a certain name. So each side gets two users from the kernel:
// the user of the process at the other end of the AF_UNIX connection, and the owner of the other
// end of the TCP connection. Both must be the side's own user; in case of doubt, the bytes go by
// TCP.

const (
	meetingMagic = "viaduct rings 4\n"
	requestLen   = len(meetingMagic) + 4 + namesLen
	namesLen     = 2 * 18
	answerLen    = 128
	refused      = 0
	granted      = 1
	committed    = 'C'

	// A grant has pairsOffered in its second byte, which is 0 in the grants of earlier versions. The
	// dialer may then commit with committedPair, the name of a pair and a slot.
	pairsOffered  = 1
	committedPair = 'P'
	seatLen       = len(pairID{}) + 2

	// answerTimeout bounds the time a dialer waits for an answer. If the accepting process is busy
	// or stopped for longer, the dialer uses TCP. With samehost.Require a dialer has no
	// alternative, and waits for requireTimeout.
	answerTimeout  = 500 * time.Millisecond
	requireTimeout = 10 * time.Second

	// requestTimeout bounds the time the listening side waits for the request, and acceptTimeout
	// the wait until the named connection is accepted. The dialer commits within commitTimeout; a
	// dialer stopped for longer finds the connection broken.
	acceptTimeout  = 200 * time.Millisecond
	requestTimeout = time.Second
	commitTimeout  = 5 * time.Second

	// shunTime is how long dialers avoid a rendezvous after a missed answerTimeout.
	shunTime = 10 * time.Second
)

// meetingName returns the abstract name of the rendezvous of a listening address.
func meetingName(at netip.AddrPort) string { return "@viaduct-rings/1/" + at.String() }

// A meeting is the content of a request.
type meeting struct {
	ring     int
	from, to netip.AddrPort // the ends of the TCP connection, as the dialer sees them
}

func (m *meeting) append(b []byte) []byte {
	b = append(b, meetingMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(m.ring))
	return m.appendNames(b)
}

// appendNames appends the ends of the TCP connection to b, in namesLen bytes.
func (m *meeting) appendNames(b []byte) []byte {
	for _, a := range []netip.AddrPort{m.from, m.to} {
		ip := a.Addr().As16()
		b = append(b, ip[:]...)
		b = binary.BigEndian.AppendUint16(b, a.Port())
	}
	return b
}

func parseMeeting(b []byte) (m meeting, err error) {
	if len(b) != requestLen || string(b[:len(meetingMagic)]) != meetingMagic {
		return m, errors.New("not a request for shared memory of this version")
	}
	b = b[len(meetingMagic):]
	m.ring = int(binary.BigEndian.Uint32(b))
	b = b[4:]
	for _, a := range []*netip.AddrPort{&m.from, &m.to} {
		*a = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:]))
		b = b[18:]
	}
	return m, nil
}

// A shunned set has the rendezvous without an answer in time. Dialers avoid each for shunTime.
type shunned struct {
	sync.Mutex
	until map[string]time.Time // when shunning ends, by name
}

// add adds the rendezvous called name.
func (s *shunned) add(name string) {
	s.Lock()
	defer s.Unlock()
	for n, t := range s.until {
		if time.Now().After(t) {
			delete(s.until, n)
		}
	}
	if s.until == nil {
		s.until = make(map[string]time.Time)
	}
	s.until[name] = time.Now().Add(shunTime)
}

// has reports whether dialers avoid the rendezvous called name.
func (s *shunned) has(name string) bool {
	s.Lock()
	defer s.Unlock()
	t, ok := s.until[name]
	return ok && time.Now().Before(t)
}

// ShareMemory moves the bytes of nc to shared memory if the peer is a process of the same user on
// this host and offers shared memory. Dial must just have returned nc; nothing was read or written.
// If the bytes cannot be moved, nc stays on TCP and [PathOf] returns the reason. Staying on TCP is
// an error only if policy is samehost.Require, or if the peer's proof has failed (see prove): the
// connection is reset then.
//
// dir is the directory for processes of other network namespaces, or "". After an error nc cannot
// be used.
func ShareMemory(ctx context.Context, nc net.Conn, policy samehost.Policy, dir string) error {
	o, ok := nc.(*conn)
	why := whyNotOwned
	switch {
	case policy == samehost.Off:
		why = WhyOff
	case ok:
		err := o.share(ctx, dir, policy == samehost.Require)
		if err == nil {
			return nil
		}
		why = err.Error()
		if _, ok := errors.AsType[proofError](err); ok {
			policy = samehost.Require
		}
	}
	if ok {
		o.s.setWhy(why)
	}
	if policy == samehost.Require {
		return &net.OpError{Op: "dial", Net: "shm", Source: nc.LocalAddr(), Addr: nc.RemoteAddr(), Err: errors.New(why)}
	}
	return nil
}

// share requests shared memory from the peer. The error is the reason for TCP, or a proofError.
func (o *conn) share(ctx context.Context, dir string, required bool) error {
	m := meeting{ring: shm.DefaultRing, from: addrPort(o.local), to: addrPort(o.remote)}
	names, err := meetingNames(m.from, m.to, dir)
	if err != nil {
		return err
	}
	wait := answerTimeout
	if required {
		wait = requireTimeout
	}
	end := time.Now().Add(wait)
	if at, ok := ctx.Deadline(); ok && at.Before(end) {
		end = at
	}
	for {
		err = o.ask(ctx, m, names, end, required)
		if err == nil || !required || !stoppedWaiting(err) || time.Now().After(end) {
			return err
		}
		// The listener waits only as long as suits dialers with TCP as an alternative. The dialer
		// here has none, and repeats the request.
	}
}

// stoppedWaiting reports whether err of a request means that the listener has stopped waiting: for
// the accept of the connection, or for the request itself. The listener closes the rendezvous if
// this process stands still for requestTimeout before it sends the request.
func stoppedWaiting(err error) bool {
	return err.Error() == whyNotAccepted || errors.Is(err, unix.EPIPE)
}

// ask makes one request with new memory, and moves the bytes of o to the new memory after a grant.
func (o *conn) ask(ctx context.Context, m meeting, names []string, end time.Time, required bool) (err error) {
	bell, name, err := callMeeting(names, required)
	if err != nil {
		return err
	}
	proves := name[0] != '@'
	bells := []int{bell}
	defer func() {
		if err != nil {
			closeAll(bells)
		}
	}()
	uid, err := SameUser(bell)
	if err != nil {
		return err
	}
	mem, fd, err := shm.Create(m.ring)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	m.ring = mem.Ring()
	defer func() {
		if err != nil {
			mem.Close()
		}
	}()
	room, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(room[1])
	bells = append(bells, room[0])
	rights := []int{fd, room[1]}
	if proves {
		rights = append(rights, o.s.fd)
	}
	if err := unix.Sendmsg(bell, m.append(nil), unix.UnixRights(rights...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	// The owner is checked while the listener works on the request. By now the listener has usually
	// accepted the connection, so that the listener's end has an owner.
	var owned error
	if !proves {
		owned = checkOwner(o.s.fd, m.to, m.from, uid)
	}
	theirs, pairs, err := awaitAnswer(ctx, bell, end)
	if theirs >= 0 {
		defer unix.Close(theirs)
	}
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			process.shunned.add(name)
			return errors.New("the listener has not answered in time")
		}
		return err
	}
	switch {
	case proves:
		err = prove(o.s.fd, theirs, m.from, m.to)
	case owned != nil:
		err = checkOwner(o.s.fd, m.to, m.from, uid)
	}
	if err != nil {
		return err
	}
	r := newRings(mem, true, bell, room[0])
	if r.seat, err = commit(bell, name, pairs); err != nil {
		return err
	}
	// Nothing was read or written, so an error means a closed o.
	if err = o.s.adopt(r); err != nil && r.seat != nil {
		r.seat.leave()
	}
	return err
}

// commit tells the listener that the stream goes through shared memory. With pairs, the listener
// knows pairs, and the connection gets a seat.
func commit(bell int, name string, pairs bool) (*seat, error) {
	if !pairs {
		_, err := send(bell, []byte{committed})
		return nil, err
	}
	// The name may be another process's by now.
	cred, err := unix.GetsockoptUcred(bell, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	s := process.partners.takeSeat(partnerID{name, cred.Pid})
	if s.pair == nil {
		if _, err := send(bell, []byte{committed}); err != nil {
			s.leave()
			return nil, err
		}
		return s, nil
	}
	b := append([]byte{committedPair}, s.pair.id[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(s.slot))
	var rights []byte
	if s.files != nil {
		rights = unix.UnixRights(s.files...)
	}
	err = os.NewSyscallError("sendmsg", unix.Sendmsg(bell, b, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT))
	if err != nil {
		s.pair.End() // the listener does not know it
		s.leave()
		return nil, err
	}
	closeAll(s.files)
	s.files = nil
	return s, nil
}

// meetingNames returns the names under which the listener of a connection may have a rendezvous.
// Without an error, names is not empty.
func meetingNames(from, to netip.AddrPort, dir string) (names []string, err error) {
	if isHere(from, to) {
		names = append(names, meetingName(to))
		if to.Addr().Is4() {
			names = append(names, meetingName(netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port())))
		}
		names = append(names, meetingName(netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())))
	}
	if dir != "" {
		if err := checkMeetingDir(dir); err != nil {
			return nil, err
		}
		return append(names, meetingPath(dir, to)), nil
	}
	if names == nil {
		return nil, errors.New(whyOtherHost)
	}
	return names, nil
}

// callMeeting connects to the first existing rendezvous, and returns the name too. Unless required,
// callMeeting fails at the first shunned name.
func callMeeting(names []string, required bool) (fd int, name string, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, "", os.NewSyscallError("socket", err)
	}
	for _, name = range names {
		if !required && process.shunned.has(name) {
			err = errors.New("the listener has not answered in time lately")
			break
		}
		switch err = unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err {
		case nil:
			return fd, name, nil
		case unix.ECONNREFUSED, unix.ENOENT:
			err = errors.New(whyNoMeeting)
			continue
		default:
			err = os.NewSyscallError("connect", err)
		}
		break
	}
	unix.Close(fd)
	return -1, "", err
}

// SameUser returns the user of the process at the other end of an AF_UNIX connection. A user other
// than the user of this process is an error.
func SameUser(fd int) (uid uint32, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		return 0, os.NewSyscallError("getsockopt", err)
	case int(cred.Uid) != os.Geteuid() || cred.Uid == OverflowUID:
		return 0, errors.New(whyOtherUser)
	}
	return cred.Uid, nil
}

// checkOwner returns an error unless user uid owns the socket of the TCP connection from local to
// remote. near is a descriptor of the connection's other end.
func checkOwner(near int, local, remote netip.AddrPort, uid uint32) error {
	owner, err := ownerOf(near, local, remote)
	if err != nil {
		return fmt.Errorf("the user of the peer's TCP socket is not known: %w", err)
	}
	if owner != uid {
		return fmt.Errorf("user %d answers for shared memory, the TCP connection is of user %d", uid, owner)
	}
	return nil
}

// awaitAnswer waits for the listener's answer, until end at most. theirs is the descriptor of the
// listener's end of the TCP connection, if the answer contains the descriptor, and -1 otherwise.
// The caller closes theirs, after an error too. pairs reports whether the listener knows pairs.
func awaitAnswer(ctx context.Context, fd int, end time.Time) (theirs int, pairs bool, err error) {
	theirs = -1
	var b [answerLen]byte
	for n := 0; n < len(b); {
		Soon(func() bool { // the listener is usually about to answer
			k, err := peek(fd, b[n:])
			return k > 0 || err != ErrWouldBlock
		})
		left := time.Until(end)
		if left <= 0 {
			return theirs, false, os.ErrDeadlineExceeded
		}
		if err := ctx.Err(); err != nil {
			return theirs, false, err
		}
		left = min(left, 100*time.Millisecond) // ctx may end meanwhile
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := Poll(p[:], int((left+time.Millisecond-1)/time.Millisecond)); err != nil {
			return theirs, false, os.NewSyscallError("poll", err)
		}
		k, fds, err := recvRights(fd, b[n:], 1)
		for _, fd := range fds {
			if theirs >= 0 {
				unix.Close(theirs)
			}
			theirs = fd
		}
		switch {
		case err == ErrWouldBlock:
			continue
		case err != nil:
			return theirs, false, err
		case k == 0:
			return theirs, false, errors.New("the listener has refused without a reason")
		}
		n += k
	}
	switch b[0] {
	case granted:
	default:
		return theirs, false, errors.New(string(b[2 : 2+min(int(b[1]), len(b)-2)]))
	}
	return theirs, b[1] >= pairsOffered, nil
}
