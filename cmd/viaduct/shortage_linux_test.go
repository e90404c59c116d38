package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/addr"
)

// A service that has no free descriptor for a while serves again afterwards.
func TestServiceShortage(t *testing.T) {
	t.Parallel()
	_, echo := start(t, 1, "echo", "--listen", "tcp://127.0.0.1:0")
	for _, args := range [][]string{
		{"echo", "--listen", "tcp://127.0.0.1:0"},
		{"echo", "--listen", "sdp://127.0.0.1:0"},
		{"echo", "--listen", "iwarp://127.0.0.1:0"},
		{"echo", "--listen", "vitcp://127.0.0.1:0/test"},
		{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", echo[0]},
	} {
		p, urls := start(t, 1, args...)
		pid := p.cmd.Process.Pid
		u, err := addr.Parse(urls[0])
		if err != nil {
			t.Fatal(err)
		}
		var before unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
			t.Fatal(err)
		}
		none := before
		for none.Cur = 0; ; none.Cur++ { // up to the first free descriptor
			if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, none.Cur)); err != nil {
				break
			}
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &none, nil); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", u.HostPort())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the accept fails
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if r := run(t, "ping", "-c", "1", "--wait", "1m", urls[0]); r.code != 0 {
			t.Errorf("%s: exit %d\n%s\nits stderr:\n%s", strings.Join(args, " "), r.code, r.stderr, p.stderr())
		}
	}
}
