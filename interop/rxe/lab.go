//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const nobody = 65534

// A trial is a shell script whose programs all run under one supervisor. The script's environment
// variables are ADDR, the host's address, PORT, a free TCP port, and MESSAGES, the number of
// messages that perftest's tools send.
type trial struct {
	name   string
	needs  []string // required programs or files
	script string   // shell script
	says   []string // texts that the output must contain
	judge  func(out string) (note string, err error)
	slow   bool
	long   bool // only with -long
}

// A lab holds the shared state of the trials.
type lab struct {
	dir, viaduct, addr string
	limit              time.Duration
	env                []string
	path               string // directories that are searched for programs
}

func newLab(ctx context.Context, p plan) (*lab, error) {
	dir, err := os.MkdirTemp("", "viaduct-interop-rxe")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, viaduct: filepath.Join(dir, "viaduct"), limit: p.limit, path: p.sources.path()}
	l.env = append(os.Environ(), "HOME="+dir, "LC_ALL=C", "TMPDIR="+dir, "PATH="+l.path, "MESSAGES="+strconv.Itoa(p.messages))
	l.env = append(l.env, p.sources.env()...)
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	if p.viaduct != "" {
		l.viaduct = p.viaduct
		return l, nil
	}
	c := exec.CommandContext(ctx, "go", "build", "-o", l.viaduct, "./cmd/viaduct")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := c.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("build: %w\n%s", err, b)
	}
	return l, nil
}

// run runs a script under a supervisor, as a user without capabilities, and returns the output.
func (l *lab) run(ctx context.Context, script string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, l.viaduct, "run", "--rdma", "--device", "rxe0", "--", "sh", "-c", functions+script)
	c.Dir = l.dir
	c.Env = append(l.env, "ADDR="+l.addr, "PORT="+strconv.Itoa(port), fmt.Sprintf("HEXPORT=%04X", port))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	if ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("it did not end within %v", limit)
	}
	return string(out), err
}

// freePort returns a free TCP port. The port is not the default port of a tool, because another
// program may use a default port. The port is below the system's ports for outgoing connections,
// because a connection could take such a port before the tool listens.
func freePort() (port int, err error) {
	const first, last = 15000, 32000
	for range 100 {
		port = first + rand.IntN(last-first)
		l, e := net.Listen("tcp", ":"+strconv.Itoa(port))
		if e == nil {
			return port, l.Close()
		}
		err = e
	}
	return 0, err
}

// functions are shell functions for all scripts: listens waits until a program listens at PORT, and
// retry runs a program until success, at most 60 times.
const functions = `listens() {
	for i in $(seq 6000); do
		grep -qs " [0-9A-F]*:$HEXPORT 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 && return
		sleep 0.02
	done
	echo "nothing listens at port $PORT"
}
retry() {
	for i in $(seq 60); do
		"$@" && return
		sleep 1
	done
	return 1
}
`

// pair returns a script for a server at PORT and a client. Both must succeed.
func pair(server, client string) string { return both(server, "listens", client) }

// pairCM returns a script for a server listening by rdma_cm and a client. Both must succeed. The
// system does not show when the server listens, so a client rejected for being too early is run
// again.
func pairCM(server, client string) string { return both(server, "sleep 0.5", "retry "+client) }

func both(server, ready, client string) string {
	return server + ` & s=$!; ` + ready + `; ` + client + `; c=$?; wait $s; e=$?; echo "server $e, client $c"; exit $((e + c))`
}

// make runs a trial once, and checks the output. note is a remark for the table.
func (l *lab) make(ctx context.Context, tr trial) (note string, err error) {
	limit := l.limit
	if tr.slow {
		limit *= 4
	}
	out, err := l.run(ctx, tr.script, limit)
	if tr.judge != nil {
		return tr.judge(out)
	}
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	for _, s := range tr.says {
		if s = strings.ReplaceAll(s, "$ADDR", l.addr); !strings.Contains(out, s) {
			return "", fmt.Errorf("the output lacks %q:\n%s", s, out)
		}
	}
	return "", nil
}

// findAddress sets l.addr to the device's address, read from the GID at index 1, as programs do.
func (l *lab) findAddress(ctx context.Context) error {
	out, err := l.run(ctx, "cat /sys/class/infiniband/rxe0/ports/1/gids/1", l.limit)
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out))
	}
	words := strings.Split(strings.TrimSpace(out), ":")
	if len(words) != 8 || words[5] != "ffff" {
		return fmt.Errorf("the GID at index 1 is no IPv4 address: %s", out)
	}
	var a [4]int
	if _, err := fmt.Sscanf(words[6]+words[7], "%02x%02x%02x%02x", &a[0], &a[1], &a[2], &a[3]); err != nil {
		return err
	}
	l.addr = fmt.Sprintf("%d.%d.%d.%d", a[0], a[1], a[2], a[3])
	return nil
}

// missing returns the first missing program or file of a trial, or "".
func (l *lab) missing(tr trial) string {
	for _, p := range tr.needs {
		found := false
		for _, dir := range filepath.SplitList(l.path) {
			if _, err := os.Stat(filepath.Join(dir, p)); err == nil {
				found = true
			}
		}
		if _, err := os.Stat(p); err != nil && !found {
			return p
		}
	}
	return ""
}
