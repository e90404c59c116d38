//go:build linux && (amd64 || arm64)

package main

import (
	"net"
	"os/exec"
	"strings"
	"testing"
)

// Calls with addresses of every family and length, and with sockets in every state, return the same
// as without viaduct run. Afterwards the sockets are in the same state.
func TestRunAnswers(t *testing.T) {
	t.Parallel()
	program := buildCFile(t, "answers")
	l := listenOn(t, "127.0.0.1")
	go serveEcho(l)
	port := portOf(l.Addr())
	six, err := net.Listen("tcp", "[::1]:"+port)
	if err != nil {
		t.Skip("SKIPPED: this host has no IPv6, or the port is taken there: ", err)
	}
	defer six.Close()
	go serveEcho(six)
	closed := closedPort(t, "127.0.0.1")
	deaf4, deaf6 := deaf(t, "127.0.0.1").Addr(), deaf(t, "::1").Addr()
	args := []string{program, port, closed, portOf(deaf4), portOf(deaf6)}

	native, err := exec.CommandContext(t.Context(), args[0], args[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(native), ", connecting, "); n != 9 {
		t.Fatalf("without viaduct run, %d connects of a connecting socket, want 9", n)
	}
	silent := deaf(t, "127.0.0.1").Addr().String()
	_, four, _ := net.SplitHostPort(echoSDP(t, "127.0.0.1"))
	r, es := runRun(t, []string{"--portmap-listen", "off", "--listen", "any", "--to", deaf4.String() + "=" + silent,
		"--to", deaf6.String() + "=" + silent, "--to", "[::1]:" + port + "=" + echoSDP(t, "::1"),
		"--to", "*:" + port + "=127.0.0.1:" + four}, args...)
	if r.code != 0 {
		t.Fatalf("exit %d, %s", r.code, r.stderr)
	}
	if n := count(es, "connect", "sdp"); n < 20 {
		t.Errorf("only %d connections were carried", n)
	}
	want := linesByCall(string(native))
	got := linesByCall(r.stdout)
	for call, answer := range want {
		if got[call] != answer {
			t.Errorf("%s: %s, the kernel answers %s", call, got[call], answer)
		}
	}
	for call, answer := range got {
		if _, ok := want[call]; !ok {
			t.Errorf("%s: %s, natively there is no such line", call, answer)
		}
	}
}

// linesByCall splits each line into a call and the answer, at the first colon and space.
func linesByCall(text string) map[string]string {
	m := map[string]string{}
	last := ""
	for line := range strings.Lines(text) {
		call, answer, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if strings.HasPrefix(call, "  ") { // continues the line before
			call = last + call
		}
		m[call], last = answer, call
	}
	return m
}
