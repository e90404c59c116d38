//go:build linux && (amd64 || arm64)

package run

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// freeDescriptors opens descriptors until none is left, and returns their number. keep descriptors
// stay open until giveBack is called; the others are closed at once.
func freeDescriptors(t *testing.T, keep int) (n int, giveBack func()) {
	t.Helper()
	var fds []int
	for {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	keep = min(keep, len(fds))
	for _, fd := range fds[keep:] {
		unix.Close(fd)
	}
	return len(fds), func() {
		for _, fd := range fds[:keep] {
			unix.Close(fd)
		}
	}
}

// A socket is held only if enough descriptors for a plain dial remain. Otherwise the holder leaves
// nothing behind, and the socket can be connected as before.
func TestSeizeLeavesDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	low := was
	low.Cur = min(was.Cur, 128)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	held, refused := 0, 0
	for free := range 12 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := freeDescriptors(t, 0)
		_, giveBack := freeDescriptors(t, all-free)
		s := new(supervisor)
		h, err := s.seize(&borrowed{fd: fd, family: unix.AF_INET, cookie: 1},
			&dial{to: netip.MustParseAddrPort("127.0.0.1:1")})
		left, _ := freeDescriptors(t, 0)
		giveBack()
		switch {
		case err == nil:
			held++
			if left < 4 {
				t.Errorf("%d descriptors: held, and %d are left", free, left)
			}
			h.close()
		case !errors.Is(err, unix.EMFILE):
			t.Errorf("%d descriptors: %v", free, err)
		case left < free:
			t.Errorf("%d descriptors: %d are left", free, left)
		default:
			refused++
			if at := localName(fd); at.Port() != 0 {
				t.Errorf("%d descriptors: the socket has address %v", free, at)
			}
		}
		unix.Close(fd)
	}
	if held == 0 || refused == 0 {
		t.Errorf("held %d times, refused %d times", held, refused)
	}
}
