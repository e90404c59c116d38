//go:build linux && (amd64 || arm64)

package notify

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProcessOfShort: processOf fails if no descriptor is free, but does not return ErrGone.
// Otherwise the call of a living thread would never be answered.
func TestProcessOfShort(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := processOf(os.Getpid())
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err != unix.EMFILE {
		t.Errorf("in a shortage: %v, want EMFILE", err)
	}
	if pid, err := processOf(unix.Gettid()); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v, want %d", pid, err, os.Getpid())
	}
	if _, err := processOf(1 << 30); err != ErrGone {
		t.Errorf("of no thread: %v, want ErrGone", err)
	}
}
