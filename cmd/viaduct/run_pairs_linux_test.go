//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"viaduct/internal/testkit"
)

// pairServer starts an echo server under run --same-host and returns the server's port.
func pairServer(t *testing.T, program string) (s *served, port string) {
	t.Helper()
	port = strconv.Itoa(freePort(t))
	s = startRun(t, []string{"--same-host"}, program, "serve-many", port)
	eventually(t, "the listener", func() bool { return count(s.explained(), "listen", "pair") == 1 })
	return s, port
}

// Signals interrupt connects that become socket pairs, and every thread of the supervisors. The
// server must not get a connection without a client. Therefore an end the program did not get must
// serve the next connect, and a connect whose answer was lost must be answered again.
func TestRunPairStorm(t *testing.T) {
	lengthy(t, "3 s")
	t.Parallel()
	program := buildCFile(t, "shapes")
	n := 300
	if !testkit.LongRuns() || raceDetector {
		n = 60
	}
	for _, us := range []string{"1000", "200"} {
		for _, restart := range []string{"0", "1"} {
			t.Run(us+"us/restart="+restart, func(t *testing.T) {
				t.Parallel()
				server, port := pairServer(t, program)
				c := startRun(t, []string{"--same-host"}, afterLine(program, "storm", port, strconv.Itoa(n), us, restart)...)
				ends := []func(){stormThreads(c.supervisor()), stormThreads(server.supervisor())}
				io.WriteString(c.in, "\n")
				code, es := c.finish()
				for _, end := range ends {
					end()
				}
				if pairs := count(es, "connect", "pair"); code != 0 || pairs != n {
					others := slices.DeleteFunc(es, func(e explained) bool { return e.Path == "pair" })
					t.Errorf("exit %d; %d of %d connections were pairs; %+v\n%s", code, pairs, n, others, c.stderr())
				}
				eventually(t, "the server's connections",
					func() bool { return count(server.explained(), "accept", "pair") >= n })
				if code := server.stop(syscall.SIGTERM); code != 128+15 {
					t.Errorf("exit %d; %s", code, server.stderr())
				}
				if got := count(server.explained(), "accept", "pair"); got != n {
					t.Errorf("the server has seen %d connections, want %d", got, n)
				}
			})
		}
	}
}

// A supervisor without free descriptors leaves connections plain, and requests no pair that the
// program could not get.
func TestRunPairShort(t *testing.T) {
	lengthy(t, "7 s")
	t.Parallel()
	program := buildCFile(t, "shapes")
	server, port := pairServer(t, program)
	c := limited(t, 64, []string{"--same-host"}, "sh",
		"-c", `for i in 1 2; do "$0" many "$1" 60 </dev/zero & done; wait`, program, port)
	code, es := c.finish()
	pairs, plain := count(es, "connect", "pair"), count(es, "connect", "tcp")
	if code != 0 || pairs < 5 || plain < 5 || c.stderr() != "" {
		t.Errorf("exit %d; %d connections were pairs, %d plain, want some of both\n%s", code, pairs, plain, c.stderr())
	}
	eventually(t, "the server's connections",
		func() bool { return count(server.explained(), "accept", "pair") >= pairs })
	if code := server.stop(syscall.SIGTERM); code != 128+15 {
		t.Errorf("exit %d; %s", code, server.stderr())
	}
	if got := count(server.explained(), "accept", "pair"); got != pairs {
		t.Errorf("the server has seen %d pairs, want %d", got, pairs)
	}
}

// Pairs leave no descriptor open in either supervisor or program.
func TestRunPairLeaks(t *testing.T) {
	lengthy(t, "12 s")
	t.Parallel()
	program := buildCFile(t, "shapes")
	n := 1000
	if !testkit.LongRuns() || raceDetector {
		n = 200
	}
	server, port := pairServer(t, program)
	c := startRun(t, []string{"--same-host"}, "sh",
		"-c", `"$0" connect "$1" 40 && echo one && read x && "$0" connect "$1" "$2" && echo two && read x`, program, port, strconv.Itoa(n))
	if got := c.line(); got != "one" {
		t.Fatalf("said %q", got)
	}
	pids := []int{c.supervisor(), server.supervisor()}
	pids = append(pids, childOf(t, pids[0], "PATH="), childOf(t, pids[1], "PATH="))
	var before []int
	for _, pid := range pids {
		before = append(before, steady(t, pid))
	}
	io.WriteString(c.in, "x\n")
	if got := c.line(); got != "two" {
		t.Fatalf("said %q", got)
	}
	for i, pid := range pids {
		eventually(t, fmt.Sprintf("as many descriptors of process %d as before, %d", i, before[i]),
			func() bool { return descriptors(t, pid) <= before[i] })
	}
	io.WriteString(c.in, "x\n")
	if code, es := c.finish(); code != 0 || count(es, "connect", "pair") != n+40 {
		t.Errorf("exit %d; %d connections were pairs, want %d\n%s", code, count(es, "connect", "pair"),
			n+40, c.stderr())
	}
}
