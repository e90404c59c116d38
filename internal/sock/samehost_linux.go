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
	meetingMagic = "viaduct rings 2\n"
	requestLen   = len(meetingMagic) + 4 + 2*18
	answerLen    = 128
	granted      = 1
	committed    = 'C'

	// answerTimeout bounds how long a dialer waits for an answer. An accepting
	// process that is busy for so long, or stopped, is asked by TCP.
	answerTimeout = 500 * time.Millisecond

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
func ShareMemory(ctx context.Context, nc net.Conn, policy samehost.Policy) error {
	o, ok := nc.(*conn)
	policy = wanted(policy)
	why := whyNotOwned
	switch {
	case policy == samehost.Off:
		why = WhyOff
	case ok:
		err := o.share(ctx)
		if err == nil {
			return nil
		}
		why = err.Error()
	}
	if ok {
		o.s.setWhy(why)
	}
	if policy == samehost.Require {
		return &net.OpError{Op: "dial", Net: "shm", Source: nc.LocalAddr(), Addr: nc.RemoteAddr(), Err: errors.New(why)}
	}
	return nil
}

// addrPort returns the address of a TCP socket.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// isHere reports whether a connection may be one within this host. One that is, and
// is not found to be here, has been bound to different addresses.
func isHere(local, remote netip.AddrPort) bool {
	return remote.IsValid() && remote.Addr().Zone() == "" && (remote.Addr() == local.Addr() || remote.Addr().IsLoopback())
}

// share asks the peer for shared memory. The error is the reason for TCP.
func (o *conn) share(ctx context.Context) (err error) {
	m := meeting{ring: ringSize, from: addrPort(o.local), to: addrPort(o.remote)}
	if !isHere(m.from, m.to) {
		return errors.New(whyOtherHost)
	}
	bell, name, err := callMeeting(m.to)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			unix.Close(bell)
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
	m.ring = mem.Ring()
	defer unix.Close(fd)
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
	defer func() {
		if err != nil {
			unix.Close(room[0])
		}
	}()
	if err := unix.Sendmsg(bell, m.append(nil), unix.UnixRights(fd, room[1]), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	if err := awaitAnswer(ctx, bell); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			shun(name, true)
			return errors.New("the listener has not answered in time")
		}
		return err
	}
	// The peer has accepted the connection now, so that it has an owner.
	if err := checkOwner(m.to, m.from, uid); err != nil {
		return err
	}
	if _, err := send(bell, []byte{committed}); err != nil {
		return err
	}
	r := newRings(mem, true, bell, room[0])
	if err := o.s.adopt(r); err != nil {
		return err // nothing was read or written: it was closed
	}
	return nil
}

// callMeeting connects to the rendezvous of the listener that has accepted a
// connection to an address.
func callMeeting(to netip.AddrPort) (fd int, name string, err error) {
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	places := []netip.Addr{to.Addr(), any6}
	if to.Addr().Is4() {
		places = []netip.Addr{to.Addr(), any4, any6}
	}
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, "", os.NewSyscallError("socket", err)
	}
	for _, a := range places {
		name = meetingName(netip.AddrPortFrom(a, to.Port()))
		if shun(name, false) {
			err = errors.New("the listener has not answered in time lately")
			break
		}
		switch err = unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err {
		case nil:
			return fd, name, nil
		case unix.ECONNREFUSED:
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

// checkOwner makes sure that a user owns the socket of a TCP connection.
func checkOwner(local, remote netip.AddrPort, uid uint32) error {
	owner, err := ownerOf(local, remote)
	if err != nil {
		return fmt.Errorf("the user of the peer's TCP socket is not known: %w", err)
	}
	if owner != uid {
		return fmt.Errorf("user %d answers for shared memory, the TCP connection is of user %d", uid, owner)
	}
	return nil
}

// awaitAnswer waits for the listener's answer.
func awaitAnswer(ctx context.Context, fd int) error {
	end := time.Now().Add(answerTimeout)
	if at, ok := ctx.Deadline(); ok && at.Before(end) {
		end = at
	}
	var b [answerLen]byte
	for n := 0; n < len(b); {
		Soon(func() bool { // the listener is about to answer, most of the time
			k, err := peek(fd, b[n:])
			return k > 0 || err != ErrWouldBlock
		})
		left := time.Until(end)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p[:], int((left+time.Millisecond-1)/time.Millisecond)); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		k, err := recv(fd, b[n:], unix.MSG_DONTWAIT)
		switch {
		case err == ErrWouldBlock:
			continue
		case err != nil:
			return err
		case k == 0:
			return errors.New("the listener has refused without a reason")
		}
		n += k
	}
	if b[0] != granted {
		return errors.New(string(b[2 : 2+min(int(b[1]), len(b)-2)]))
	}
	return nil
}

// A rendezvous is where dialers of this host ask for shared memory.
type rendezvous struct {
	at netip.AddrPort // the listener's address
	u  *net.UnixListener

	mu    sync.Mutex
	conns map[netip.AddrPort]*conn // accepted connections by the peer's address, while nothing was read from them; guarded by mu
	added chan struct{}            // closed with the next addition, if something waits for it; guarded by mu
}

// openRendezvous makes the rendezvous of a listening address, nil if there can be
// none: another one has the name, for instance.
func openRendezvous(at netip.AddrPort) *rendezvous {
	u, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: meetingName(at)})
	if err != nil {
		return nil
	}
	v := &rendezvous{at: at, u: u, conns: make(map[netip.AddrPort]*conn)}
	go v.serve()
	return v
}

func (v *rendezvous) close() { v.u.Close() }

// add has a connection, that was just accepted, found.
func (v *rendezvous) add(o *conn) {
	from := addrPort(o.remote)
	if !isHere(addrPort(o.local), from) {
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

// remove has it not found any more.
func (v *rendezvous) remove(o *conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if from := addrPort(o.remote); v.conns[from] == o {
		delete(v.conns, from)
	}
}

// find waits for a connection to be accepted.
func (v *rendezvous) find(m meeting) *conn {
	late := time.NewTimer(acceptTimeout)
	defer late.Stop()
	for {
		v.mu.Lock()
		o := v.conns[m.from]
		if v.added == nil {
			v.added = make(chan struct{})
		}
		added := v.added
		v.mu.Unlock()
		if o != nil {
			if addrPort(o.local) != m.to {
				return nil
			}
			return o
		}
		select {
		case <-added:
		case <-late.C:
			return nil
		}
	}
}

func (v *rendezvous) serve() {
	for {
		c, err := v.u.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(5 * time.Millisecond) // no descriptors, most likely
			continue
		}
		go func() {
			defer c.Close()
			v.grant(c)
		}()
	}
}

// grant serves one request.
func (v *rendezvous) grant(c *net.UnixConn) {
	c.SetDeadline(time.Now().Add(requestTimeout))
	var files [2]int
	m, n, err := readMeeting(c, files[:])
	defer func() {
		for _, fd := range files[:n] {
			unix.Close(fd)
		}
	}()
	if err != nil {
		answer(c, err)
		return
	}
	o := v.find(m)
	if o == nil {
		answer(c, errors.New("the listener has not accepted the connection"))
		return
	}
	mem, err := o.allow(c, m, files[0])
	if err != nil {
		o.s.setWhy(err.Error())
		answer(c, err)
		return
	}
	bell := dup(c) // before the dialer is told that it may commit
	if bell == nil {
		err = errors.New("the listener has no descriptor left")
		o.s.setWhy(err.Error())
		answer(c, err)
		mem.Close()
		return
	}
	leave := func() {
		unix.Close(bell.fd)
		mem.Close()
	}
	decided, err := o.s.decide()
	if err != nil {
		answer(c, err)
		leave()
		return
	}
	defer decided()
	if !answer(c, nil) {
		leave()
		return
	}
	var b [1]byte
	c.SetReadDeadline(time.Now().Add(commitTimeout)) // the dialer commits, or leaves by closing
	if n, err := ReadSoon(c, b[:]); n != 1 || err != nil || b[0] != committed {
		o.s.setWhy("the peer has left the rendezvous")
		leave()
		return
	}
	r := newRings(mem, false, bell.fd, files[1])
	if err := o.s.adopt(r); err != nil {
		// The dialer has committed: what it finds is the end of the connection.
		leave()
		o.Close()
		return
	}
	files[1] = -1
	v.remove(o)
}

// readMeeting reads a request and its n descriptors.
func readMeeting(c *net.UnixConn, files []int) (m meeting, n int, err error) {
	b, oob := make([]byte, requestLen), make([]byte, unix.CmsgSpace(4*len(files)))
	k, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return m, 0, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return m, 0, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if n == len(files) {
				unix.Close(fd)
				continue
			}
			files[n] = fd
			n++
		}
	}
	if n != len(files) || flags&unix.MSG_CTRUNC != 0 {
		return m, n, errors.New("no memory came with the request, or this process has no descriptor left")
	}
	m, err = parseMeeting(b[:k])
	return m, n, err
}

// allow checks everything about a request and maps the memory.
func (o *conn) allow(c *net.UnixConn, m meeting, fd int) (mem *shm.Memory, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var uid uint32
	if cerr := raw.Control(func(fd uintptr) { uid, err = sameUser(int(fd)) }); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, err
	}
	if err := checkOwner(m.from, m.to, uid); err != nil {
		return nil, err
	}
	return shm.Open(fd, m.ring)
}

// answer tells a dialer that it gets what it wants, or why not. It is false if that
// could not be told.
func answer(c *net.UnixConn, err error) bool {
	var b [answerLen]byte
	b[0] = granted
	if err != nil {
		b[0] = 0
		b[1] = byte(copy(b[2:], err.Error()))
	}
	_, werr := c.Write(b[:])
	return werr == nil
}
