package sock

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Containers on the same host have separate network namespaces. A process sees neither the abstract
// sockets nor the owners of the TCP sockets of another namespace. Such processes meet in a
// directory both can access, and each side passes its TCP socket to the other, as proof of holding
// that end of the TCP connection. The receiver of the passed socket sends random bytes from there,
// and must receive the same bytes at its own socket. Afterwards the stream is as empty as before,
// and both passed descriptors are closed.
//
// As with abstract names, the processes at both ends of the AF_UNIX socket must have the same user.
// Other users must not be able to change the directory.

// checkMeetingDir returns an error unless only the user of the process can create names in the
// directory.
func checkMeetingDir(dir string) error {
	var st unix.Stat_t
	switch err := unix.Stat(dir, &st); {
	case err != nil:
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is no directory", dir)
	case int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0:
		return fmt.Errorf("other users may change the directory %s", dir)
	}
	return nil
}

// meetingPath returns the path of the socket for a listening address.
func meetingPath(dir string, at netip.AddrPort) string {
	return filepath.Join(dir, "viaduct-"+at.String())
}

// meetingPaths returns the paths of the sockets for a listening address. For a wildcard address
// there is a path for each address of this network namespace except loopback, because the wildcard
// is the same in every namespace. The result is nil if the addresses cannot be listed.
func meetingPaths(dir string, at netip.AddrPort) (paths []string) {
	if !at.Addr().IsUnspecified() {
		return []string{meetingPath(dir, at)}
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLoopback() || at.Addr().Is4() && !p.Addr().Is4() {
			continue
		}
		paths = append(paths, meetingPath(dir, netip.AddrPortFrom(p.Addr(), at.Port())))
	}
	return paths
}

// listenMeeting creates a listening AF_UNIX socket with the given name, an abstract name (@) or a
// path. It replaces the socket file of a dead process. It returns EADDRINUSE if a live process has
// the name.
func listenMeeting(name string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	sa := &unix.SockaddrUnix{Name: name}
	err = unix.Bind(fd, sa)
	if err == unix.EADDRINUSE && name[0] != '@' && unix.Connect(fd, sa) == unix.ECONNREFUSED {
		unix.Unlink(name)
		err = unix.Bind(fd, sa)
	}
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

const (
	proofLen = 16

	// proofTimeout bounds the travel time of bytes between the ends of a connection within the
	// host.
	proofTimeout = 200 * time.Millisecond
)

var errNotTheEnd = errors.New("the socket that the peer has passed is not the other end of the connection")

// A proofError reports a connection where bytes outside the stream may have been sent. The
// connection was reset and cannot be used any more.
type proofError struct{ error }

// breakOff resets a TCP connection and discards the received bytes.
func breakOff(fd int) {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unix.SizeofSockaddrInet4)
}

// prove returns an error unless theirs, a socket the peer has passed, is the other end of mine, a
// TCP connection from local to remote. Nothing may have been sent on the connection. After a
// proofError the connection is unusable; after another error it is unchanged.
func prove(mine, theirs int, local, remote netip.AddrPort) error {
	from, err := unix.Getsockname(theirs)
	if err != nil {
		return errors.New("the peer has passed no socket")
	}
	to, err := unix.Getpeername(theirs)
	if err != nil {
		return errors.New("the peer has passed a socket without a connection")
	}
	if addrPort(tcpAddr(from)) != remote || addrPort(tcpAddr(to)) != local {
		return errors.New("the peer's end of the connection has other addresses: they are translated on the way")
	}
	var st unix.Stat_t
	if err := unix.Fstat(theirs, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Uid == OverflowUID {
		return errors.New(whyOtherUser)
	}
	if err := sendProof(mine, theirs); err != nil {
		breakOff(mine)
		return proofError{err}
	}
	return nil
}

// sendProof sends random bytes from theirs and reads them at mine. The error is errNotTheEnd if
// other bytes arrive, or too few within proofTimeout.
func sendProof(mine, theirs int) error {
	var token, got [proofLen]byte
	rand.Read(token[:])
	if _, err := send(theirs, token[:]); err != nil {
		return err
	}
	for n, end := 0, time.Now().Add(proofTimeout); n < len(got); {
		k, err := read(mine, got[n:])
		switch {
		case err == ErrWouldBlock:
			left := time.Until(end)
			if left <= 0 {
				return errNotTheEnd
			}
			p := [1]unix.PollFd{{Fd: int32(mine), Events: unix.POLLIN}}
			_, _ = Poll(p[:], int(left/time.Millisecond)+1)
		case err != nil:
			return err
		case k == 0:
			return errors.New("the peer has closed the connection")
		default:
			n += k
		}
	}
	if got != token {
		return errNotTheEnd
	}
	return nil
}
