//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// "viaduct ps" lists the queue pairs of a RoCE device with the number of moved bytes, until the
// queue pairs are closed. "rdma resource" lists the queue pairs as well.
func TestRXEPs(t *testing.T) {
	need(t, "ibv_rc_pingpong", "ibverbs-utils")
	psDir(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer cancel()
	var out bytes.Buffer
	c := command(ctx, "run", "--rdma", "--device", "rxe0", "--", "sh", "-c",
		`ibv_rc_pingpong -g 1 -n 100000000 -p $0 & while ! ibv_rc_pingpong -g 1 -n 100000000 -p $0 localhost; do sleep 0.1; done`, strconv.Itoa(freePort(t)))
	c.Stdout, c.Stderr = &out, &out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	ended.Go(func() { c.Run() })
	name := regexp.MustCompile(`^[0-9a-f.:]+/qp\d+$`)
	for found := map[string]string{}; ; {
		if ctx.Err() != nil {
			t.Fatalf("the list does not have both ends: %v", found)
		}
		for _, p := range psList(t).Processes {
			for _, q := range p.Conns {
				if q.Transport == "roce" && q.Path == "roce RC" && q.State == "open" &&
					q.SentBytes > 1000 && q.ReceivedBytes > 1000 &&
					name.MatchString(q.Local) && name.MatchString(q.Remote) {
					found[q.Local] = q.Remote
				}
			}
		}
		for local, remote := range found {
			if local != remote && found[remote] == local {
				return
			}
		}
	}
}

// The closed objects of a program are no longer listed by the rdma tool, although the supervisor
// still runs.
func TestRXEResources(t *testing.T) {
	need(t, "ibv_rc_pingpong", "ibverbs-utils")
	need(t, "rdma", "iproute2")
	r := good(t, "run", "--rdma", "--device", "rxe0", "--", "sh", "-c", `
		ibv_rc_pingpong -g 1 -p $0 >/dev/null & p=$!
		until rdma resource show qp | grep INIT; do sleep 0.1; done
		rdma resource
		kill $p; wait $p
		until rdma resource | grep "qp 0 cm_id 0 mr 0 ctx 0"; do sleep 0.1; done`, strconv.Itoa(freePort(t)))
	want := regexp.MustCompile(`(?s)^link rxe0/- lqpn \d+ .*type RC state INIT .*comm ibv_rc_pingpong.*rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 1 ctx 1 srq 0.*rxe0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0`)
	if !want.MatchString(r.stdout) {
		t.Errorf("%s\nwant %s", r.stdout, want)
	}
}

// If a program is linked with the direct interface of one manufacturer's adapters, the user gets
// one line about the missing adapter.
func TestRDMAVendorLibrary(t *testing.T) {
	const library = "libmlx5.so.1"
	need(t, "cc", "gcc")
	need(t, "ibv_devices", "ibverbs-utils")
	program := buildLinked(t, library)
	r := good(t, "run", "--rdma", "--explain", "--", "sh", "-c", "$0; $0; ibv_devinfo >/dev/null", program)
	if n := strings.Count(r.stderr, "is linked with "+library); n != 1 {
		t.Errorf("%d lines, want 1:\n%s", n, r.stderr)
	}
	if r := good(t, "run", "--rdma", "--explain", "--", "ibv_devinfo"); strings.Contains(r.stderr, "is linked with") {
		t.Errorf("a line for a program without it:\n%s", r.stderr)
	}
}

// buildLinked builds a C program linked with the library. The program opens the file of the first
// device. buildLinked skips the test if the library is not installed.
func buildLinked(t *testing.T, library string) string {
	t.Helper()
	var path string
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib64/", "/usr/lib/"} {
		if _, err := os.Stat(dir + library); err == nil {
			path = dir + library
			break
		}
	}
	if path == "" {
		t.Skipf("SKIPPED: %s is not installed (Debian: ibverbs-providers)", library)
	}
	source, program := filepath.Join(t.TempDir(), "linked.c"), filepath.Join(t.TempDir(), "linked")
	const text = "#include <fcntl.h>\nint main(void) { return open(\"/dev/infiniband/uverbs0\", O_RDWR) < 0; }\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("cc", "-o", program, source, "-Wl,--no-as-needed", path).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: cc does not link %s: %v\n%s", library, err, b)
	}
	return program
}
