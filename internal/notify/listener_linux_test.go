//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() { MaybeStub() }

// TestListenerClose: Close closes the descriptor, and later calls of the Listener do not use the
// descriptor.
func TestListenerClose(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // an eventfd stands for a listener to which no calls arrive
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(fd)
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is still open: %v", err)
	}
	if _, err := l.Recv(); err != net.ErrClosed {
		t.Errorf("Recv after Close: %v, want %v", err, net.ErrClosed)
	}
}

// TestRecvEnd checks that Recv returns every call of a program, and io.EOF when the last task has
// ended, whether Recv waits in poll or in the kernel's receive call.
func TestRecvEnd(t *testing.T) {
	for _, polled := range []bool{true, false} {
		if !polled && kernelBefore(6, 11) {
			continue
		}
		t.Run(fmt.Sprintf("polled=%v", polled), func(t *testing.T) {
			child, err := Start(&Command{Path: "/bin/sh",
				Args:  []string{"sh", "-c", "(umask 7) & umask 7; wait; kill -9 $$"},
				Rules: []Rule{{Nr: unix.SYS_UMASK, Do: Notify}}})
			if err != nil {
				t.Fatal(err)
			}
			l := child.Listener
			defer l.Close()
			l.polled = polled
			calls := 0
			for {
				c, err := l.Recv()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				calls++
				// The end of the other process may interrupt the call, and the shell then repeats the
				// call or not.
				if err := c.Return(0, 0); err != nil && err != ErrGone {
					t.Fatal(err)
				}
			}
			// Some shells read the mask before setting it, so more calls than two may arrive.
			if calls < 2 {
				t.Errorf("%d calls, want one of each of two processes", calls)
			}
			var ws unix.WaitStatus
			if _, err := unix.Wait4(child.Pid, &ws, 0, nil); err != nil || ws.Signal() != unix.SIGKILL {
				t.Errorf("the program ended with %v, %v", ws, err)
			}
		})
	}
}

func TestKernelBefore(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		before       bool
	}{{1, 99, false}, {5, 0, false}, {1 << 20, 0, true}} {
		if got := kernelBefore(c.major, c.minor); got != c.before {
			t.Errorf("before %d.%d: %v", c.major, c.minor, got)
		}
	}
}

// TestMemAllocs: ReadMem and WriteMem allocate nothing.
func TestMemAllocs(t *testing.T) {
	var from, to [64]byte
	from[5] = 1
	c := &Call{TID: unix.Gettid()}
	n := testing.AllocsPerRun(10, func() {
		if _, err := c.mem(unix.SYS_PROCESS_VM_READV, addressOf(&from[0]), to[:]); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 || to != from {
		t.Errorf("%v allocations, %x", n, to)
	}
}

func addressOf(b *byte) uint64 { return uint64(uintptr(unsafe.Pointer(b))) }
