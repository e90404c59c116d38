//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const nobody = 65534

func main() {
	only := regexp.MustCompile("")
	flag.Func("only", "make the trials whose name matches the regular expression `RE`", func(s string) (err error) {
		only, err = regexp.Compile(s)
		return err
	})
	runs := flag.Int("runs", 1, "make each trial so many times, all in turn")
	limit := flag.Duration("limit", time.Minute, "how long a run may take; pyverbs may take four times that")
	viaduct := flag.String("viaduct", "", "use the command in `FILE` instead of building it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := try(ctx, *viaduct, only, *runs, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "interop/rxe:", err)
		os.Exit(1)
	}
}

// A trial is a script whose programs all run under one supervisor.
type trial struct {
	name   string
	needs  []string // programs
	script string   // of sh; the word ADDR is the host's address
	says   []string // all of which the output has to have
	judge  func(out string) (note string, err error)
	slow   bool
}

// pair is a script of a server and a client, which both have to end well. The server gets a moment to listen.
func pair(server, client string) string {
	return server + ` & s=$!; sleep 0.5; ` + client + `; c=$?; wait $s; e=$?; echo "server $e, client $c"; exit $((e + c))`
}

// A lab is where trials are made.
type lab struct {
	dir, viaduct, addr string
	limit              time.Duration
}

func newLab(ctx context.Context, viaduct string, limit time.Duration) (*lab, error) {
	dir, err := os.MkdirTemp("", "viaduct-interop-rxe")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, viaduct: filepath.Join(dir, "viaduct"), limit: limit}
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	if viaduct != "" {
		l.viaduct = viaduct
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

// run makes a script under a supervisor, as a user without any capability.
func (l *lab) run(ctx context.Context, script string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := exec.CommandContext(ctx, l.viaduct, "run", "--rdma", "--device", "rxe0", "--", "sh", "-c", script)
	c.Dir = l.dir
	c.Env = append(os.Environ(), "HOME="+l.dir, "LC_ALL=C", "TMPDIR="+l.dir)
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

// make makes a trial once.
func (l *lab) make(ctx context.Context, tr trial) (note string, err error) {
	limit := l.limit
	if tr.slow {
		limit *= 4
	}
	out, err := l.run(ctx, strings.ReplaceAll(tr.script, "ADDR", l.addr), limit)
	if tr.judge != nil {
		return tr.judge(out)
	}
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	for _, s := range tr.says {
		if s = strings.ReplaceAll(s, "ADDR", l.addr); !strings.Contains(out, s) {
			return "", fmt.Errorf("it does not say %q:\n%s", s, out)
		}
	}
	return "", nil
}

// address finds the address that the device has, as programs do.
func (l *lab) address(ctx context.Context) error {
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

func missing(tr trial) string {
	for _, p := range tr.needs {
		if _, err := exec.LookPath(p); err != nil {
			if _, err := os.Stat(p); err != nil {
				return p
			}
		}
	}
	return ""
}

func try(ctx context.Context, viaduct string, only *regexp.Regexp, runs int, limit time.Duration) error {
	l, err := newLab(ctx, viaduct, limit)
	if err != nil {
		return err
	}
	defer os.RemoveAll(l.dir)
	if err := l.address(ctx); err != nil {
		fmt.Printf("\n*** SKIPPED: run --rdma --device rxe0 does not work here: %v ***\n", err)
		return nil
	}
	skipped := map[string][]string{}
	var failed []string
	made := 0
	for n := range runs {
		for _, tr := range trials {
			if !only.MatchString(tr.name) || ctx.Err() != nil {
				continue
			}
			if m := missing(tr); m != "" {
				if n == 0 {
					skipped[m] = append(skipped[m], tr.name)
				}
				continue
			}
			began := time.Now()
			note, err := l.make(ctx, tr)
			made++
			word := "ok"
			if err != nil {
				word = "FAILED"
				failed = append(failed, tr.name)
			}
			fmt.Printf("%-40s %-6s %5.1f s  %s\n", tr.name, word, time.Since(began).Seconds(), note)
			if err != nil {
				fmt.Println(err)
			}
		}
	}
	for p, names := range skipped {
		fmt.Printf("*** SKIPPED for want of %s: %s ***\n", p, strings.Join(names, ", "))
	}
	switch {
	case len(failed) > 0:
		slices.Sort(failed)
		return fmt.Errorf("%d of %d failed: %s", len(failed), made, strings.Join(slices.Compact(failed), ", "))
	case made == 0 && len(skipped) == 0:
		return errors.New("no trial has such a name")
	}
	return nil
}
