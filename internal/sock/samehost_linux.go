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

// Two processes of one host agree on shared memory before the first byte of a
// stream. The listening side has an AF_UNIX socket in the abstract namespace, which
// is that of the network namespace, named after its address. The dialing side makes
// the memory, connects there, names its TCP connection and sends the memory along.
// The listening side finds the connection among those that it has accepted and of
// which nothing was read, and answers; then the dialing side commits. After that
// the AF_UNIX connection is a bell, see rings.
//
//	dialer                                   listener
//	request, memory, bell for room  ---->
//	                                <----    grant, or the reason against it
//	commit                          ---->
//
// Until it has committed the dialing side can leave: it closes the AF_UNIX
// connection and begins the stream on TCP. The listening side sees either bytes on
// TCP or the commitment.
//
// Names prove nothing. Each side compares the user of the other's end of the
// AF_UNIX connection with the user that owns the other end of the TCP connection,
// which only the kernel tells, and takes only its own. In case of doubt, it is TCP.

const (
	meetingMagic = "viaduct rings 4\n"
	requestLen   = len(meetingMagic) + 4 + namesLen
	namesLen     = 2 * 18
	answerLen    = 128
	refused      = 0
	granted      = 1
	committed    = 'C'

	// answerTimeout bounds how long a dialer waits for an answer. An accepting
	// process that is busy for so long, or stopped, is asked by TCP. A dialer that requires
	// shared memory has nothing else, and waits for requireTimeout.
	answerTimeout  = 500 * time.Millisecond
	requireTimeout = 10 * time.Second

	// acceptTimeout bounds how long the listening side waits for the connection
	// that a request names to be accepted, and requestTimeout for the request.
	// The dialer commits within commitTimeout; one that is stopped for longer finds
	// the connection broken.
	acceptTimeout  = 200 * time.Millisecond
	requestTimeout = time.Second
	commitTimeout  = 5 * time.Second

	// shunTime is how long a rendezvous that has not answered in time is left
	// alone.
	shunTime = 10 * time.Second
)

// ringSize is how much each ring may grow to.
var ringSize = shm.DefaultRing

// meetingName is the name of the rendezvous of a listening address.
func meetingName(at netip.AddrPort) string { return "@viaduct-rings/1/" + at.String() }

// A meeting is a request.
type meeting struct {
	ring     int
	from, to netip.AddrPort // of the TCP connection, as the dialer sees it
}

func (m *meeting) append(b []byte) []byte {
	b = append(b, meetingMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(m.ring))
	return m.appendNames(b)
}

// appendNames adds the names of the TCP connection, namesLen bytes.
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

// shunned holds rendezvous that have not answered in time.
var shunned struct {
	sync.Mutex
	until map[string]time.Time // by name
}

// shun reports whether a rendezvous is to be left alone. With now it is from now on.
func shun(name string, now bool) bool {
	shunned.Lock()
	defer shunned.Unlock()
	if now {
		for n, t := range shunned.until {
			if time.Now().After(t) {
				delete(shunned.until, n)
			}
		}
		if shunned.until == nil {
			shunned.until = make(map[string]time.Time)
		}
		shunned.until[name] = time.Now().Add(shunTime)
		return true
	}
	t, ok := shunned.until[name]
	return ok && time.Now().Before(t)
}

// ShareMemory moves the bytes of nc, which Dial has just made, to shared memory if
// the peer is a process of the same user on this host that offers it. Nothing was
// read or written. Otherwise nc stays as it is, and [PathOf] tells the reason; that is
// an error only if policy is samehost.Require.
//
// dir is a directory in which processes of other network namespaces are met, "" for none.
// After an error nc is of no use.
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

// share asks the peer for shared memory. The error is the reason for TCP, or a proofError.
func (o *conn) share(ctx context.Context, dir string, required bool) error {
	m := meeting{ring: ringSize, from: addrPort(o.local), to: addrPort(o.remote)}
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
		if err == nil || !required || err.Error() != whyNotAccepted || time.Now().After(end) {
			return err
		}
		// The listener has waited for as long as it does for a dialer that can go on by TCP.
	}
}

// ask asks once, with new memory.
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
	uid, err := sameUser(bell)
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
	// While the listener is at it: most of the time it has accepted the connection by now,
	// so that its end has an owner.
	var owned error
	if !proves {
		owned = checkOwner(o.s.fd, m.to, m.from, uid)
	}
	theirs, err := awaitAnswer(ctx, bell, end)
	if theirs >= 0 {
		defer unix.Close(theirs)
	}
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			shun(name, true)
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
	if _, err := send(bell, []byte{committed}); err != nil {
		return err
	}
	return o.s.adopt(newRings(mem, true, bell, room[0])) // nothing was read or written: it is an error if it was closed
}

// meetingNames returns the names by which a rendezvous of the listener may be found that
// has accepted a connection. There is one at least if there is no error.
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

// callMeeting connects to the first rendezvous that is there.
func callMeeting(names []string, required bool) (fd int, name string, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, "", os.NewSyscallError("socket", err)
	}
	for _, name = range names {
		if !required && shun(name, false) {
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

// sameUser returns the user of the process at the other end of an AF_UNIX
// connection, which is this process's.
func sameUser(fd int) (uid uint32, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		return 0, os.NewSyscallError("getsockopt", err)
	case int(cred.Uid) != os.Geteuid() || cred.Uid == overflowUID:
		return 0, errors.New(whyOtherUser)
	}
	return cred.Uid, nil
}

// checkOwner makes sure that a user owns the socket of a TCP connection whose other end is
// near.
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

// checkPeer makes sure that the dialer that asks by a bell is of this user, and has the other end of a TCP connection
// that waits for the verdict on that.
func (s *Socket) checkPeer(bell int, m meeting) error {
	uid, err := sameUser(bell)
	if err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	return checkOwner(s.fd, m.from, m.to, uid)
}

// awaitAnswer waits for the listener's answer, with which its end of the TCP connection
// may come; theirs is -1 if not.
func awaitAnswer(ctx context.Context, fd int, end time.Time) (theirs int, err error) {
	theirs = -1
	var b [answerLen]byte
	for n := 0; n < len(b); {
		Soon(func() bool { // the listener is about to answer, most of the time
			k, err := peek(fd, b[n:])
			return k > 0 || err != ErrWouldBlock
		})
		left := time.Until(end)
		if left <= 0 {
			return theirs, os.ErrDeadlineExceeded
		}
		if err := ctx.Err(); err != nil {
			return theirs, err
		}
		left = min(left, 100*time.Millisecond) // ctx may end meanwhile
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := Poll(p[:], int((left+time.Millisecond-1)/time.Millisecond)); err != nil {
			return theirs, os.NewSyscallError("poll", err)
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
			return theirs, err
		case k == 0:
			return theirs, errors.New("the listener has refused without a reason")
		}
		n += k
	}
	switch b[0] {
	case granted:
	default:
		return theirs, errors.New(string(b[2 : 2+min(int(b[1]), len(b)-2)]))
	}
	return theirs, nil
}
