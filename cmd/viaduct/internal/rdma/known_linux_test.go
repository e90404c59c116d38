//go:build linux && (amd64 || arm64)

package rdma

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// A cached file is found as long as the number refers to the file in the calling thread, whatever
// has happened to the number. The cache is empty after drop.
func TestKnown(t *testing.T) {
	k := &known{pid: os.Getpid(), numbers: newNumbers(1024)}
	file := func(number int) {
		t.Helper()
		fd, err := unix.MemfdCreate("known", unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Dup3(fd, number, unix.O_CLOEXEC)
			unix.Close(fd)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const at = firstLow + 3
	x := &context{}
	// Each case runs in a thread that ends with the case's goroutine, because the case gives the
	// thread a separate descriptor table.
	var in func(f func(c *notify.Call))
	in = func(f func(c *notify.Call)) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			if unix.Gettid() == k.pid { // the first thread stays alive, and /proc/self shows its descriptors
				defer runtime.UnlockOSThread()
				in(f)
				return
			}
			f(&notify.Call{TID: unix.Gettid()})
		}()
		<-done
	}
	found := func(c *notify.Call, want bool, when string) {
		t.Helper()
		got := k.begin(c, at)
		if (got != nil) != want || got != nil && got != x {
			t.Errorf("%s: found %v", when, got != nil)
		}
		if got != nil {
			got.calls.Done()
		}
	}
	file(at)
	var kept []int
	keep := func() {
		t.Helper()
		fd, err := unix.FcntlInt(at, unix.F_DUPFD_CLOEXEC, 100)
		if err != nil {
			t.Fatal(err)
		}
		k.keep(at, fd, x)
		kept = append(kept, fd)
	}
	in(func(c *notify.Call) {
		found(c, false, "before it is known")
		keep()
		keep()
		found(c, true, "known")
		if k.begin(c, at+1) != nil {
			t.Error("found at another number")
		}
		other, err := unix.FcntlInt(at, unix.F_DUPFD_CLOEXEC, 100)
		if err != nil {
			t.Fatal(err)
		}
		file(at)
		found(c, false, "with another file at the number")
		if err := unix.Dup3(other, at, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		found(c, true, "there again")
		unix.Close(other)
		unix.CloseRange(at, at, 0)
		found(c, false, "with nothing at the number")
		file(at)
		keep()
	})
	in(func(mine *notify.Call) {
		in(func(c *notify.Call) {
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				t.Fatal(err)
			}
			found(c, true, "in a thread with files of its own")
			unix.Close(at)
			found(c, false, "closed by that thread")
		})
		found(mine, true, "closed by another thread for itself")
	})
	k.drop()
	if len(k.at) != 0 {
		t.Error("known after drop")
	}
	k.off = true // nothing is cached then
	keep()
	unix.Close(at)
	for _, fd := range kept {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
			t.Errorf("descriptor %d is still open: %v", fd, err)
		}
	}
}
