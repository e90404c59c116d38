//go:build linux && (amd64 || arm64)

package run

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/notify"
	"viaduct/internal/testkit"
)

// A process whose calls restart after signals is traced. Job control stops and continues it all the
// same, and isStopped recognizes the stop.
func TestTracedStops(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	defer c.Wait()
	defer c.Process.Kill()
	r, err := notify.NewRestarter(pid, func(int, notify.Native) bool { return false })
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("SKIPPED: not possible on this processor")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		signal  syscall.Signal
		stopped bool
	}{{syscall.SIGSTOP, true}, {syscall.SIGCONT, false}, {syscall.SIGSTOP, true}, {syscall.SIGCONT, false}} {
		syscall.Kill(pid, step.signal)
		// A report to the tracer looks like a stop, but is over soon.
		end := time.Now().Add(testkit.Patience)
		for same := 0; same < 20; time.Sleep(time.Millisecond) {
			if same++; isStopped(pid) != step.stopped {
				same = 0
			}
			if time.Now().After(end) {
				t.Fatalf("after %v, the process is stopped: %v", step.signal, !step.stopped)
			}
		}
	}
	syscall.Kill(pid, syscall.SIGKILL)
	<-r.Done()
}
