package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"viaduct/cmd/viaduct/internal/transport"
)

// TestBench: every transport and operation gives a figure, and plain TCP stands
// beside each.
func TestBench(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "p.svg")
	r := run(t, "bench", "--ops", "all", "--sizes", "64,64K", "--rounds", "1", "--time", "5ms", "--idle-conns", "20", "--doorbells", "1,16",
		"--conns", "1,3", "--json", "--plot", plot)
	if r.code != 0 {
		t.Errorf("exit %d, %s", r.code, r.stderr) // and below which it is
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

	// Two hosts, as far as one can show it.
	p, urls := start(t, 1, "bench", "--server", "tcp://127.0.0.1:0")
	r = good(t, "bench", "--client", urls[0], "--transports", "vitcp,iwarp?crc=off", "--ops", "write", "--sizes", "4K", "--rounds", "2", "--time", "5ms")
	if !strings.Contains(r.stdout, "iwarp?crc=off") || !strings.Contains(r.stdout, "to TCP") {
		t.Error(r.stdout)
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("server: exit %d", code)
	}
	fails(t, 1, "refused", "bench", "--client", "tcp://127.0.0.1:1")
	for _, c := range []string{"--ops juggle", "--sizes 1", "--sizes big", "--transports pigeon", "--transports iwarp?crc=x", "--rounds 0", "--time 1ns",
		"--server tcp://:0 --client tcp://h:1", "--client vitcp://h/d", "--doorbells 0", "--conns 0"} {
		if r := run(t, append([]string{"bench"}, strings.Fields(c)...)...); r.code != 2 {
			t.Errorf("bench %s: exit %d, %s", c, r.code, r.last())
		}
	}
}
