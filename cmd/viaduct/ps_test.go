//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/status"
	"viaduct/internal/testkit"
	"viaduct/sdp"
)

// psDir sets a separate run directory for the test, and returns viaduct's subdirectory.
func psDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ps") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	return filepath.Join(dir, "viaduct")
}

func psList(t *testing.T) (doc struct{ Processes []status.Process }) {
	t.Helper()
	out := good(t, "ps", "--json").stdout
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return doc
}

// allAnswered runs a command until every process it asks has answered in time, because a process on
// a busy machine may take longer than the half second of ps and stat. allAnswered returns stdout.
func allAnswered(t *testing.T, args ...string) (out string) {
	t.Helper()
	testkit.Eventually(t, "answers of all processes", func() bool {
		out = good(t, args...).stdout
		return !strings.Contains(out, "no answer within")
	})
	return out
}

// TestPs: ps lists the connections of every transport at both ends, with the path of the bytes and
// the reason for the path. A stopped process does not block ps, and a killed process is no longer
// listed.
func TestPs(t *testing.T) {
	dir := psDir(t)
	if out := good(t, "ps").stdout; !strings.Contains(out, "no viaduct process") || strings.Count(out, "\n") != 1 {
		t.Errorf("an empty list is %q", out)
	}
	if doc := psList(t); doc.Processes == nil || len(doc.Processes) != 0 {
		t.Errorf("an empty document is %+v", doc)
	}
	schemes := []string{"iwarp", "vitcp", "sdp", "fcvi", "tcp"}
	args := []string{"echo"}
	for _, s := range schemes {
		u := s + "://127.0.0.1:0"
		if s == "vitcp" || s == "fcvi" {
			u += "/x"
		}
		args = append(args, "--listen", u)
	}
	echo, urls := start(t, len(schemes), args...)
	for _, u := range urls {
		ctx, cancel := context.WithCancel(t.Context())
		p := command(ctx, "ping", u, "-c", "1000000", "-i", "50ms")
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); p.Wait() })
	}
	var doc struct{ Processes []status.Process }
	testkit.Eventually(t, "ten ends of five connections", func() bool {
		doc = psList(t)
		n := 0
		for _, p := range doc.Processes {
			for _, c := range p.Conns {
				if c.SentBytes > 0 && c.ReceivedBytes > 0 {
					n++
				}
			}
		}
		return n == 2*len(schemes)
	})
	for _, p := range doc.Processes {
		accepts := p.PID == echo.cmd.Process.Pid
		if accepts && (len(p.Listeners) != len(schemes) || len(p.Conns) != len(schemes)) {
			t.Errorf("echo: %+v", p)
		}
		for _, c := range p.Conns {
			if role := map[bool]string{true: "accept", false: "dial"}[accepts]; c.Role != role ||
				c.Local == "" || c.Remote == "" || c.State != "open" ||
				!strings.HasPrefix(c.Path, c.Transport) || c.Why == "" || c.Opened.IsZero() {
				t.Errorf("%s: %+v", p.Program, c)
			}
		}
	}
	pid := fmt.Sprint(echo.cmd.Process.Pid)
	table := allAnswered(t, "ps")
	if lines := strings.Split(strings.TrimSpace(table), "\n"); len(lines) != 1+len(schemes)+2*len(schemes) ||
		!strings.Contains(lines[0], "PATH") {
		t.Errorf("the table is\n%s", table)
	}
	if out := allAnswered(t, "stat", pid, "--interval", "200ms"); !strings.Contains(out, "sdp_sent_messages") ||
		!strings.Contains(out, "rx_pkts") || !strings.Contains(out, "listening at "+urls[0]) {
		t.Errorf("stat:\n%s", out)
	}
	type rated struct {
		Transport string
		Rates     map[string]float64 `json:"rates_per_second"`
	}
	var one struct {
		Processes []struct {
			PID         int
			Connections []rated
		}
	}
	// A process that has answered once only, or has sent nothing within the interval, has no rate.
	testkit.Eventually(t, "rates of both ends", func() bool {
		r := run(t, "stat", urls[0], "--json", "--interval", "300ms")
		one.Processes = nil
		if err := json.Unmarshal([]byte(r.stdout), &one); err != nil {
			t.Fatalf("%v: %s", err, r.stdout)
		}
		moving := 0
		for _, p := range one.Processes {
			for _, c := range p.Connections {
				if c.Rates["tx_bytes"] > 0 {
					moving++
				}
			}
		}
		return moving >= 2
	})
	if len(one.Processes) != 2 {
		t.Errorf("stat %s: %+v", urls[0], one)
	}
	for _, p := range one.Processes {
		if len(p.Connections) != 1 || p.Connections[0].Transport != "iwarp" {
			t.Errorf("stat %s: %+v", urls[0], p)
		}
	}
	fails(t, 1, "no viaduct process", "stat", "1")
	fails(t, 2, "process number", "stat", "0")
	fails(t, 2, "process number or a URL", "stat", "nonsense")

	if err := echo.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	listed := regexp.MustCompile("(?m)^ *" + pid + "  ")
	table = good(t, "ps").stdout
	if !listed.MatchString(table) || !strings.Contains(table, "no answer within") {
		t.Errorf("with a stopped process\n%s", table)
	}
	echo.cmd.Process.Kill()
	echo.cmd.Process.Signal(syscall.SIGCONT)
	<-echo.done
	if table = good(t, "ps").stdout; listed.MatchString(table) {
		t.Errorf("the killed process is listed\n%s", table)
	}
	if _, err := os.Lstat(filepath.Join(dir, pid+".sock")); err == nil {
		t.Error("the socket of the killed process is still there")
	}
}

// TestPsWatchCost: ps --watch needs at most 2 % of a processor for 500 connections, at the default
// interval.
func TestPsWatchCost(t *testing.T) {
	psDir(t)
	echo, urls := start(t, 1, "echo", "--listen", "sdp://127.0.0.1:0")
	conns := 500
	if raceDetector {
		conns = 50 // no cost is checked, and the answer must come within half a second
	}
	for range conns {
		c, err := sdp.Dial(strings.TrimPrefix(urls[0], "sdp://"), &sdp.Options{RecvBuffers: 3, RecvBufferSize: 4096})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	eventually(t, "all connections", func() bool {
		d := psList(t)
		return len(d.Processes) == 1 && len(d.Processes[0].Conns) == conns
	})
	// watch returns the processor time used by ps for a number of lists.
	watch := func(interval time.Duration, lists int) time.Duration {
		p := begin(t, func(*exec.Cmd) {}, "ps", "--watch", "--interval", interval.String())
		for n := 0; n < lists; {
			if strings.Contains(p.line(), "PID  PROGRAM") {
				n++
			}
		}
		p.cmd.Process.Signal(os.Interrupt)
		for range p.out { // the remaining lines of the last list
		}
		p.wait()
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	}
	const lists = 6
	const limit = 40 * time.Millisecond
	var per, end time.Duration
	// Other programs on the processor make the same work cost more time, so that the cheapest of
	// several measurements counts.
	for try := range 10 {
		before := cpuOf(t, echo.cmd.Process.Pid)
		cpu := watch(100*time.Millisecond, lists)
		served := cpuOf(t, echo.cmd.Process.Pid) - before
		start := watch(time.Minute, 1)
		least := func(a, b time.Duration) time.Duration {
			if try == 0 {
				return b
			}
			return min(a, b)
		}
		per, end = least(per, (cpu-start)/time.Duration(lists-1)), least(end, served/time.Duration(lists))
		if per <= limit && end <= limit || raceDetector {
			break
		}
	}
	t.Logf("a list of %d connections costs %v, and %v in the process that answers: %.2f %% and %.2f %% of a processor at 2 s", conns, per, end,
		100*per.Seconds()/2, 100*end.Seconds()/2)
	if !raceDetector && (per > limit || end > limit) {
		t.Errorf("above %v, which is 2 %%", limit)
	}
}

// cpuOf returns the processor time a process has used, or 0 if the system does not report processor
// times.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var user, system int64
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// TestPsTaken: nc is no longer listed as a listener after accepting its only connection.
func TestPsTaken(t *testing.T) {
	psDir(t)
	for _, u := range []string{"sdp://127.0.0.1:0", "vitcp://127.0.0.1:0/x"} {
		server := begin(t, func(*exec.Cmd) {}, "nc", "-l", u)
		var at string
		testkit.Eventually(t, "the listener", func() bool {
			for _, x := range psList(t).Processes {
				for _, l := range x.Listeners {
					at = l.URL
				}
			}
			return at != ""
		})
		client := begin(t, func(*exec.Cmd) {}, "nc", at)
		testkit.Eventually(t, "two ends and no listener", func() bool {
			listeners, conns := 0, 0
			for _, x := range psList(t).Processes {
				listeners += len(x.Listeners)
				conns += len(x.Conns)
			}
			return listeners == 0 && conns == 2
		})
		client.cmd.Process.Kill()
		server.cmd.Process.Kill()
		<-client.done
		<-server.done
	}
}

// TestPsProxy: both sides of a proxy's connections are listed.
func TestPsProxy(t *testing.T) {
	psDir(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	proxy, urls := start(t, 1, "proxy", "--listen", "sdp://127.0.0.1:0", "--to", "tcp://"+l.Addr().String())
	c, err := sdp.Dial(strings.TrimPrefix(urls[0], "sdp://"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	testkit.Eventually(t, "both sides of the proxy", func() bool {
		d := psList(t)
		if len(d.Processes) != 1 || d.Processes[0].PID != proxy.cmd.Process.Pid || len(d.Processes[0].Conns) != 2 {
			return false
		}
		a, b := d.Processes[0].Conns[0], d.Processes[0].Conns[1]
		return a.Transport == "sdp" && a.Role == "accept" && b.Transport == "tcp" &&
			b.Role == "dial" && b.Remote == l.Addr().String()
	})
}
