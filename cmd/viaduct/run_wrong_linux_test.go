//go:build linux && (amd64 || arm64)

package main

import (
	"path/filepath"
	"strconv"
	"testing"
)

// TestRunWrongConnects: a connect refused by the kernel changes neither a carried socket nor the
// socket's addresses.
func TestRunWrongConnects(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	program := filepath.Join("testdata", "run", "wrong.py")
	port, sdpPort := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	want := plain(t, python, program, port)
	r, es := runRun(t, []string{"--portmap-listen", "off", "--listen", port + "=" + sdpPort, "--to", "127.0.0.1:" + port + "=:" + sdpPort}, python, program, port)
	if r.code != 0 || count(es, "connect", "sdp") != 1 {
		t.Errorf("exit %d, %+v\n%s", r.code, es, r.stderr)
	}
	compareTables(t, r.stdout, want)
}
