//go:build linux && (amd64 || arm64)

package main

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestRunFlow: to a peer that reads nothing, at most 1 MiB more is in flight than over TCP.
func TestRunFlow(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	program := filepath.Join("testdata", "run", "flood.py")
	port, sdpPort := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	want := strings.Fields(plain(t, python, program, port))
	r, es := runRun(t, []string{"--portmap-listen", "off", "--listen", port + "=" + sdpPort, "--to", "127.0.0.1:" + port + "=:" + sdpPort}, python, program, port)
	got := strings.Fields(r.stdout)
	if r.code != 0 || count(es, "connect", "sdp") != 2 || len(got) != 2 || len(want) != 2 {
		t.Fatalf("exit %d, %q, without run %q, %+v\n%s", r.code, got, want, es, r.stderr)
	}
	for i, end := range []string{"connecting", "accepting"} {
		g, _ := strconv.Atoi(got[i])
		w, _ := strconv.Atoi(want[i])
		if g == 0 || w == 0 || g > w+1<<20 {
			t.Errorf("%d bytes were taken from the %s end whose peer reads nothing, %d without run", g, end, w)
		}
		t.Logf("%s: %d bytes, %d without run", end, g, w)
	}
}
