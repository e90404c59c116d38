package sock

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/internal/sockdiag"
)

// OverflowUID is the user number the kernel shows for every user without a number in this user
// namespace. Two processes with this number may be of different users.
const OverflowUID = 65534

// ownerOf returns the user who owns the socket of the TCP connection from local to remote. near is
// a descriptor of the connection's other end; both ends are in the network namespace of near. The
// error wraps ENOENT if no accepted connection has these addresses.
func ownerOf(near int, local, remote netip.AddrPort) (uid uint32, err error) {
	uid, err = ownerByDiag(near, local, remote)
	if err != nil && !errors.Is(err, unix.ENOENT) && err != errNamespace {
		uid, err = ownerByProc(local, remote)
	}
	if err == nil && uid == OverflowUID {
		err = errors.New("its user has no number here")
	}
	return uid, err
}

// A diag caches the netlink socket for queries about the sockets of a network namespace. The next
// query usually can use the same socket, because most processes have a single namespace.
type diag struct {
	sync.Mutex
	conn   *sockdiag.Conn // nil: none
	cookie uint64         // cookie of conn's network namespace
}

var errNamespace = errors.New("sock: the connection is in another network namespace than this thread")

// ownerByDiag queries the kernel for the owner of a TCP socket in the namespace of near. The error
// is errNamespace if the thread is in another namespace.
func ownerByDiag(near int, local, remote netip.AddrPort) (uint32, error) {
	want, err := sockdiag.Namespace(near)
	if err != nil { // an old kernel: assume the namespace of this thread
		c, err := sockdiag.Open()
		if err != nil {
			return 0, err
		}
		defer c.Close()
		return askOwner(c, local, remote)
	}
	d := &process.diag
	d.Lock()
	defer d.Unlock()
	if d.conn == nil || d.cookie != want {
		c, err := sockdiag.Open()
		if err != nil {
			return 0, err
		}
		got, err := c.Namespace()
		if err != nil || got != want {
			c.Close()
			return 0, errNamespace
		}
		d.closeLocked()
		d.conn, d.cookie = c, got
	}
	uid, err := askOwner(d.conn, local, remote)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		d.closeLocked() // an answer may be left in the socket
	}
	return uid, err
}

// closeLocked closes the cached netlink socket, if any.
func (d *diag) closeLocked() {
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
}

// askOwner queries c for the owner of an established TCP socket. The error is ENOENT if the socket
// does not exist, or if no process has accepted the connection yet.
func askOwner(c *sockdiag.Conn, local, remote netip.AddrPort) (uint32, error) {
	s, err := c.Find(local, remote)
	if err == nil && !(s.Established() && s.Accepted()) {
		err = unix.ENOENT
	}
	return s.UID(), err
}

// ownerByProc finds the owner in the tables of TCP sockets in /proc. Like ownerByDiag, ownerByProc
// sees the namespace of the calling thread.
func ownerByProc(local, remote netip.AddrPort) (uint32, error) {
	for _, name := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			w := strings.Fields(s.Text())
			if len(w) < 10 || w[3] != "01" || w[9] == "0" || procAddr(w[1]) != local || procAddr(w[2]) != remote {
				continue
			}
			uid, err := strconv.ParseUint(w[7], 10, 32)
			return uint32(uid), err
		}
	}
	return 0, fmt.Errorf("sock: the owner of %v is not known: %w", local, unix.ENOENT)
}

// procAddr parses an address of a table in /proc: words of four bytes in hex, each in the byte
// order of this machine. The result is the zero value for malformed text.
func procAddr(s string) netip.AddrPort {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	p, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(b)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(p))
}
