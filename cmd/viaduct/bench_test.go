package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/sock"
)

// TestBench: bench measures every transport and operation, with plain TCP as baseline.
func TestBench(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]func(*testing.T){"all": benchAll, "paths": benchBothPaths, "two hosts": benchTwoHosts, "refused": benchRefused} {
		t.Run(name, func(t *testing.T) { t.Parallel(); part(t) })
	}
}

func benchAll(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "p.svg")
	r := run(t, "bench", "--transports", strings.Join(transport.Names(), ","), "--ops", "all",
		"--sizes", "64,64K", "--rounds", "1", "--time", "5ms", "--idle-conns", "20", "--doorbells", "1,16",
		"--conns", "1,3", "--json", "--plot", plot)
	if r.code != 0 {
		t.Errorf("exit %d, %s", r.code, r.stderr)
	}
	d := document(t, r)
	have := map[string]bool{}
	for _, x := range d["rows"].([]any) {
		r := x.(map[string]any)
		if r["median"].(float64) <= 0 && r["op"] != "idle" || r["error"] != nil || r["unit"] == "" {
			t.Errorf("%v", r)
		}
		if r["ratio_to_tcp"].(float64) <= 0 && r["op"] != "idle" {
			t.Errorf("no baseline: %v", r)
		}
		have[r["transport"].(string)+" "+r["op"].(string)] = true
	}
	for _, n := range transport.Names() {
		ops := []string{"write", "read", "send", "poll", "wait", "rate", "setup", "churn", "idle"}
		if isStream(n) {
			ops = []string{"stream", "wait", "rate", "setup", "churn", "idle"}
		}
		for _, o := range ops {
			if !have[n+" "+o] {
				t.Errorf("no row for %s %s", n, o)
			}
		}
	}
	if b, err := os.ReadFile(plot); err != nil || !strings.Contains(string(b), "<svg") {
		t.Errorf("%d bytes of plot, %v", len(b), err)
	}
}

// benchBothPaths: without --transports, bench measures each transport once through shared memory
// and once with samehost=off. In builds without shared memory there is only one measurement per
// transport. If a listener is slow, as on a busy machine, its connection goes over TCP.
func benchBothPaths(t *testing.T) {
	want := map[string]bool{"iwarp?crc=off": sock.SharesByDefault}
	for _, n := range transport.Names() {
		want[n] = sock.SharesByDefault && n != "tcp"
		if want[n] {
			want[n+"?samehost=off"] = false
		}
	}
	eventually(t, fmt.Sprint("transports and whether through shared memory: ", want), func() bool {
		paths := map[string]bool{}
		for _, x := range document(t, good(t, "bench", "--ops", "wait", "--sizes", "64", "--rounds", "1", "--time", "1ms", "--json"))["rows"].([]any) {
			r := x.(map[string]any)
			paths[r["transport"].(string)] = r["shared_memory"].(bool)
		}
		t.Log(paths)
		return maps.Equal(paths, want)
	})
}

// benchTwoHosts runs bench --server and bench --client in two processes, as on two hosts.
func benchTwoHosts(t *testing.T) {
	p, urls := start(t, 1, "bench", "--server", "tcp://127.0.0.1:0")
	r := good(t, "bench", "--client", urls[0], "--transports", "vitcp,iwarp?crc=off",
		"--ops", "write", "--sizes", "4K", "--rounds", "2", "--time", "5ms")
	if !strings.Contains(r.stdout, "iwarp?crc=off") || !strings.Contains(r.stdout, "to TCP") {
		t.Error(r.stdout)
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("server: exit %d", code)
	}
}

func benchRefused(t *testing.T) {
	fails(t, 1, "refused", "bench", "--client", "tcp://127.0.0.1:1")
	for _, c := range []string{"--ops juggle", "--sizes 1", "--sizes big", "--transports pigeon", "--transports iwarp?crc=x", "--rounds 0", "--time 1ns",
		"--server tcp://:0 --client tcp://h:1", "--client vitcp://h/d", "--doorbells 0", "--conns 0"} {
		if r := run(t, append([]string{"bench"}, strings.Fields(c)...)...); r.code != 2 {
			t.Errorf("bench %s: exit %d, %s", c, r.code, r.last())
		}
	}
}

// TestBenchIntervals: -i reports on a measurement while it runs. Each row is printed as soon as its
// figures are known; with --json, each row is a line.
func TestBenchIntervals(t *testing.T) {
	t.Parallel()
	lengthy(t, "10 s")
	args := strings.Fields("bench --transports vitcp --ops send,wait --sizes 4K --rounds 2 --time 60ms -i 20ms")
	r := good(t, args...)
	at := regexp.MustCompile(`(?m)^(stream|send|wait) +4096  (tcp|vitcp) +round [12] +0\.00-\d+\.\d\d s +\d+ done +(?:-|\S+ \S+)$|^op +size`).FindAllStringSubmatch(r.stdout, -1)
	var order []string
	for _, m := range at {
		order = append(order, strings.TrimSpace(m[1]+" "+m[2]))
	}
	if got, want := strings.Join(order, ","), "stream tcp,send vitcp,stream tcp,send vitcp,,wait tcp,wait vitcp,wait tcp,wait vitcp,"; got != want {
		t.Errorf("first intervals and heads: %s; want %s\n%s", got, want, r.stdout)
	}

	r = good(t, append(args, "--json")...)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	var report struct {
		Rows []struct{ Transport, Op string }
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &report); err != nil || len(report.Rows) != 4 {
		t.Errorf("last line: %v, %s", err, lines[len(lines)-1])
	}
	done := map[string]float64{}
	for _, l := range lines[:len(lines)-1] {
		var line struct {
			Interval struct {
				Transport, Op, Unit string
				To, Done, Value     float64
			}
		}
		if err := json.Unmarshal([]byte(l), &line); err != nil || line.Interval.To <= 0 || line.Interval.Unit == "" {
			t.Errorf("%v: %s", err, l)
		}
		done[line.Interval.Op+" "+line.Interval.Transport] += line.Interval.Done
	}
	for _, row := range report.Rows {
		if done[row.Op+" "+row.Transport] == 0 {
			t.Errorf("no interval of %s %s did anything", row.Op, row.Transport)
		}
	}
	for _, d := range []string{"0s", "1us", "2h", "soon"} {
		if r := run(t, "bench", "-i", d); r.code != 2 {
			t.Errorf("-i %s: exit %d, %s", d, r.code, r.last())
		}
	}
}
