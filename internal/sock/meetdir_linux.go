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

// Containers of one host have network namespaces of their own: they see neither the
// names of each other's abstract sockets nor the owners of each other's TCP sockets.
// They meet in a directory that both have, and each side proves to the other that it
// holds the other end of the TCP connection: it passes the socket itself. The other
// side sends random bytes by that, and finds them at its own socket, where nothing else
// can have put them. After that the stream is as empty as before, and both descriptors
// are closed again.
//
// The user of the AF_UNIX socket's other end has to be this process's all the same, and
// the directory one that other users can't change.

// checkMeetingDir makes sure that only this user can put names into a directory.
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

// meetingPath is the name of a listening address in a directory.
func meetingPath(dir string, at netip.AddrPort) string {
	return filepath.Join(dir, "viaduct-"+at.String())
}

// meetingPaths are the names of a listening address in a directory: for a wildcard one
// of each address that this network namespace has, since others have the same wildcard.
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

// listenMeeting makes a listening AF_UNIX socket. A name that a process has left behind
// is taken over.
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

	// proofTimeout bounds how long bytes take from one end of a connection within
	// this host to the other.
	proofTimeout = 200 * time.Millisecond
)

var errNotTheEnd = errors.New("the socket that the peer has passed is not the other end of the connection")

// A proofError says that a connection may hold bytes that do not belong to the stream.
// It is broken off, and can't be used any more.
type proofError struct{ error }

// breakOff resets a TCP connection, and drops what has come by it.
func breakOff(fd int) {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unix.SizeofSockaddrInet4)
}

// prove makes sure that theirs, a socket that the peer has passed, is the other end of
// mine, a TCP connection from local to remote by which nothing was sent.
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
	if int(st.Uid) != os.Geteuid() || st.Uid == overflowUID {
		return errors.New(whyOtherUser)
	}
	if err := sendProof(mine, theirs); err != nil {
		breakOff(mine)
		return proofError{err}
	}
	return nil
}

// sendProof sends random bytes by theirs and reads them from mine.
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
