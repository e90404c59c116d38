//go:build linux && (amd64 || arm64)

package main

import (
	"strconv"
	"testing"
)

// TestRunStormBothEnds: no call on short connections fails while both ends get 1000 signals a
// second.
func TestRunStormBothEnds(t *testing.T) {
	lengthy(t, "11 s")
	t.Parallel()
	program := buildCFile(t, "storm")
	port, sdpPort := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	r, es := runRun(t, []string{"--portmap-listen", "off", "--listen", port + "=" + sdpPort, "--to", "127.0.0.1:" + port + "=:" + sdpPort}, program, port, "300")
	if c := count(es, "connect", "sdp"); r.code != 0 || r.stdout != "end\n" || c != 300 {
		t.Errorf("exit %d, %d connections were carried\n%s%s", r.code, c, r.stdout, r.stderr)
	}
}
