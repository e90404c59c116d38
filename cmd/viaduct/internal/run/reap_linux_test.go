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

// A child that has ended keeps its number until it is waited for: a signal that is
// passed on meanwhile reaches no other process.
func TestEndedChild(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 128 + 9, "kill -15 $$": 128 + 15} {
		child, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // it is there as long as nothing has waited for it
			pid, code, err := endedChild()
			if err != nil || pid != child || code != want {
				t.Errorf("%s: process %d, code %d, %v, want %d, %d", script, pid, code, err, child, want)
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
	if _, _, err := endedChild(); err != unix.ECHILD {
		t.Errorf("without children: %v, want ECHILD", err)
	}
}
