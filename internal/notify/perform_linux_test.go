//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPerform checks that a thread makes other calls instead of its own: the working directory
// becomes a directory whose name the thread never had. The thread's descriptors must not change,
// nor the registers, except those changed by every call.
func TestPerform(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	child, err := Start(&Command{Path: "/bin/sh",
		Args:  []string{"sh", "-c", `cd /not/there && [ "$(pwd -P)" = "$0" ] && ! [ -e /proc/$$/fd/77 ] && cd /not/there && exit 7`, dir.Name()},
		Rules: []Rule{{Nr: unix.SYS_CHDIR, Do: Notify}}})
	if err != nil {
		t.Skip("the kernel does not notify:", err)
	}
	defer child.Listener.Close()
	performed := 0
	for {
		c, err := child.Listener.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.InjectAt(int(dir.Fd()), 77, 0); err != nil {
			t.Error(err)
		}
		switch err := c.Perform(Native{unix.SYS_FCHDIR, [6]uint64{77}}, Native{unix.SYS_CLOSE, [6]uint64{77}}); {
		case errors.Is(err, unix.EPERM):
			c.Continue()
			unix.Wait4(child.Pid, nil, 0, nil)
			t.Skip("this process may not trace its children")
		case err != nil && err != ErrGone: // a signal has withdrawn the call, and the restarted call arrives as a new one
			t.Error(err)
			c.Continue()
		case err == nil:
			performed++
		}
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(child.Pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 7 || performed != 2 {
		t.Errorf("the program ended with %v, %v; %d calls", ws, err, performed)
	}
}
