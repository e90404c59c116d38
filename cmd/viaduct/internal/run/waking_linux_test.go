//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestWakingByteLate: a waking byte may be late, for example because the program's queue was full.
// Meanwhile accept calls do not wait for the connection. The connection is accepted when the byte
// has arrived.
func TestWakingByteLate(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	alive, die := context.WithCancel(t.Context())
	s := &supervisor{alive: alive, ls: listeners{arrivals: map[netip.AddrPort]*arrival{}}}
	defer s.relays.Wait()
	defer die()
	a := &arrival{near: near.(*net.TCPConn), from: addrPort(near.LocalAddr()), woken: true,
		watched: make(chan struct{})}
	close(a.watched)
	s.ls.arrivals[a.from] = a
	cl := &carriedListener{svc: &service{place: place{addr: addrPort(l.Addr())}}}
	take := func() (*delivery, error) {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		return s.takeLocked(cl, int(file.Fd()))
	}

	waitFor(int(file.Fd()), unix.POLLIN, int(testkit.Patience.Milliseconds()))
	if d, err := take(); err != unix.EAGAIN {
		t.Fatalf("before the byte: %+v, %v; want EAGAIN", d, err)
	}
	if _, err := near.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	var d *delivery
	testkit.Eventually(t, "the connection is back in the queue", func() bool {
		d, err = take()
		return err != unix.EAGAIN
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(d.fd)
	if d.from != a {
		t.Errorf("what came is of another arrival: %+v", d)
	}
	if _, err := near.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	waitFor(d.fd, unix.POLLIN, int(testkit.Patience.Milliseconds()))
	if n, err := unix.Read(d.fd, b[:]); err != nil || string(b[:n]) != "x" {
		t.Errorf("the program reads %q, %v; want what the peer has sent", b[:max(n, 0)], err)
	}
}
