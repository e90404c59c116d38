package sock

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPollSignals: a signal during Poll neither ends it nor prolongs it. The kernel's poll returns
// EINTR here, even for a timeout of 0.
func TestPollSignals(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fd := int32(r.Fd())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !stop.Load() {
			unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
		}
	}()
	defer func() { stop.Store(true); <-ended }()

	poll := func(timeout int) (int, error) {
		return Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}, timeout)
	}
	for range 100_000 {
		if n, err := poll(0); n != 0 || err != nil {
			t.Fatalf("nothing is ready: %d, %v", n, err)
		}
	}
	began := time.Now()
	if n, err := poll(20); n != 0 || err != nil || time.Since(began) < 20*time.Millisecond {
		t.Errorf("nothing is ready: %d, %v after %v", n, err, time.Since(began))
	}
	time.AfterFunc(10*time.Millisecond, func() { w.Write([]byte{1}) })
	if n, err := poll(-1); n != 1 || err != nil {
		t.Errorf("a byte is ready: %d, %v", n, err)
	}
}
