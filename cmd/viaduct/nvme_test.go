package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

// TestNVMeServe connects a queue to a file and to memory served as disks. ps must list the queue,
// and the metrics must count the queue.
func TestNVMeServe(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p, urls := start(t, 1, "nvme", "serve", file, "mem:1M", "--listen", "127.0.0.1:0")
	at := strings.TrimPrefix(urls[0], "iwarp://")
	r := nvmewire.Request{HRQSize: 32, HSQSize: 31}
	q, err := iwarp.Dial(t.Context(), at, &iwarp.Config{Private: r.Append(nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Abort()
	eventually(t, "the queue in ps", func() bool { // ps itself waits half a second for an answer
		out := good(t, "ps").stdout
		return strings.Contains(out, at) && strings.Contains(out, "accept")
	})
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d", code)
	}
	fails(t, 2, "serve is wanted", "nvme")
	fails(t, 2, "", "nvme", "serve")
	fails(t, 2, "listen", "nvme", "serve", "mem:1M", "--listen", "x")
	fails(t, 2, "no disk", "nvme", "serve", "mem:1", "--listen", "127.0.0.1:0")
	fails(t, 1, "no such file", "nvme", "serve", file+"x", "--listen", "127.0.0.1:0")
	fails(t, 2, "name of a subsystem", "nvme", "serve", file, "--nqn", "x", "--listen", "127.0.0.1:0")
}
