//go:build linux && (amd64 || arm64)

package run

import (
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestRefuseKeepsPort: until a held socket has been refused, no other socket gets the port that the
// held socket connects to.
func TestRefuseKeepsPort(t *testing.T) {
	t.Parallel()
	socket := func() int {
		t.Helper()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	h, err := newHolder(true, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	held, at := socket(), toSockaddr(h.addr, unix.AF_INET)
	defer unix.Close(held)
	if err := connectNow(&borrowed{fd: held, family: unix.AF_INET}, h.addr); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer h.close()
		h.refuse(t.Context(), held)
	}()
	for !waitFor(held, unix.POLLOUT, 1) {
		other := socket()
		err := unix.Bind(other, at)
		unix.Close(other)
		if err != unix.EADDRINUSE && !waitFor(held, unix.POLLOUT, 0) {
			t.Fatalf("bind while the held socket connects: %v, want %v", err, unix.EADDRINUSE)
		}
	}
	if e, err := unix.GetsockoptInt(held, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || unix.Errno(e) != unix.ECONNREFUSED {
		t.Errorf("the held socket reports %v, %v, want %v", unix.Errno(e), err, unix.ECONNREFUSED)
	}
	testkit.Await(t, "the end of the hold", done)
}
