//go:build linux && (amd64 || arm64)

package run

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// An ended child keeps the process number until a wait, so that a forwarded signal reaches no other
// process. The event of a stopped or continued child stays until takeChange.
func TestChangedChild(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 128 + 9, "kill -15 $$": 128 + 15} {
		child, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the event stays until something waits for it
			got, err := changedChild()
			if want := (change{pid: child, code: want}); err != nil || got != want {
				t.Errorf("%s: %+v, %v, want %+v", script, got, err, want)
			}
			b, err := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat")
			if err != nil || !bytes.Contains(b, []byte(") Z ")) {
				t.Errorf("%s: %v, %s", script, err, b)
			}
		}
		if _, err := unix.Wait4(child, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	child, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "100"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		signal syscall.Signal
		want   change
	}{
		{syscall.SIGSTOP, change{code: int(syscall.SIGSTOP), stopped: true}},
		{syscall.SIGCONT, change{code: int(syscall.SIGCONT), continued: true}},
		{syscall.SIGKILL, change{code: 128 + 9}},
	} {
		syscall.Kill(child, step.signal)
		step.want.pid = child
		if got, err := changedChild(); err != nil || got != step.want {
			t.Errorf("%v: %+v, %v, want %+v", step.signal, got, err, step.want)
		}
		taken := takeChange(child, 0)
		if ended := !step.want.stopped && !step.want.continued; taken != step.want && !ended {
			t.Errorf("%v: took %+v, want %+v", step.signal, taken, step.want)
		}
	}
	unix.Wait4(child, nil, 0, nil)
	if _, err := changedChild(); err != unix.ECHILD {
		t.Errorf("without children: %v, want ECHILD", err)
	}
}
