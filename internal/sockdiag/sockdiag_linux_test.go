package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func at(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

// TestTCP checks that the listener is found by its port, and the listener's end of a connection by
// both addresses. That end has a file as soon as the connection is accepted.
func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	place := at(l.Addr())
	found, err := Listeners(place.Port())
	if err != nil {
		t.Skipf("SKIPPED: the kernel's socket monitor does not answer here: %v", err)
	}
	if want := (Listener{place.Addr(), os.Geteuid()}); !slices.Contains(found, want) {
		t.Errorf("listeners %v, want %v among them", found, want)
	}
	far, err := net.Dial("tcp4", place.String())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	from := at(far.LocalAddr())
	if s := FindServerEnd(place, from); !s.Established() || s.Accepted() {
		t.Errorf("before the accept: %+v", s)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if s := FindServerEnd(place, from); !s.Established() || !s.Accepted() || int(s.UID()) != os.Geteuid() {
		t.Errorf("behind the accept: %+v", s)
	}
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Find(place, netip.AddrPortFrom(from.Addr(), place.Port())); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a connection that is not there: %v", err)
	}
	if s, err := c.Find(from, place); err != nil || !s.Established() {
		t.Errorf("the same Conn, asked again: %+v, %v", s, err)
	}
	near.Close()
}

// TestUnix checks that the sockets of a pair are in the list by their cookies.
func TestUnix(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	all, err := UnixSockets()
	if err != nil {
		t.Skipf("SKIPPED: the kernel's socket monitor does not answer here: %v", err)
	}
	for _, fd := range pair {
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil || !all[cookie] {
			t.Errorf("cookie %x (%v) is not among %d", cookie, err, len(all))
		}
		unix.Close(fd)
	}
}
