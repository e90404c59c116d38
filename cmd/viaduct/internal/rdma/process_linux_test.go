//go:build linux && (amd64 || arm64)

package rdma

import (
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

func init() { notify.MaybeStub() }

// A child of this process is recognized as such, and a grandchild is not. A number is not used
// after Reap, nor after the process has executed a program, by whichever call.
func TestChild(t *testing.T) {
	program, err := notify.Start(&notify.Command{Path: "/bin/sh",
		Args:  []string{"sh", "-c", "umask 7; (umask 7; :) & wait"},
		Rules: []notify.Rule{{Nr: unix.SYS_UMASK, Do: notify.Notify}}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Listener.Close()
	s := &Service{sweeper: newSweeper()}
	found := map[bool]*process{}
	for {
		c, err := program.Listener.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		child := c.TID == program.Pid
		if found[child] == nil {
			p := s.processes.open(c)
			if p == nil {
				t.Fatal("a process is not found")
			}
			defer s.processes.drop(p)
			if found[child] = p; p.child != child || p.pid != c.TID {
				t.Errorf("process %d, child %v; it is %d, child %v", p.pid, p.child, c.TID, child)
			}
			if !child {
				as := *c
				as.Compat = true // the only 32-bit calls that are notified execute programs
				s.Serve(&as)
				s.wg.Wait()
				continue
			}
		}
		c.Return(0, 0)
	}
	if len(found) != 2 || found[true].over || !found[false].over {
		t.Fatalf("%d processes, or one of them is over", len(found))
	}
	s.Reap(program.Pid)
	if _, err := unix.Wait4(program.Pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	if !found[true].over {
		t.Error("not over behind Reap")
	}
	if n := len(s.processes.numbered(program.Pid)); n != 1 {
		t.Errorf("%d of the number", n)
	}
}
