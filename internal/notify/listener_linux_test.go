//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Close ends a Recv that waits, and one that comes later, and keeps no descriptor.
func TestListenerClose(t *testing.T) {
	for range 50 { // Recv sleeps already, or has not come so far
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // as silent as a listener without calls
		if err != nil {
			t.Fatal(err)
		}
		l, err := newListener(fd)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			_, err := l.Recv()
			ended <- err
		}()
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		for name, fd := range map[string]int{"listener": l.fd, "eventfd": l.wake} {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
				t.Errorf("the descriptor of the %s is still open: %v", name, err)
			}
		}
		if err := <-ended; err != net.ErrClosed {
			t.Errorf("Recv: %v, want %v", err, net.ErrClosed)
		}
		if _, err := l.Recv(); err != net.ErrClosed {
			t.Errorf("Recv after Close: %v, want %v", err, net.ErrClosed)
		}
	}
}
