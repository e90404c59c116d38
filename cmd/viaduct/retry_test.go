package main

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/testkit"
)

// TestTimeout: --timeout ends a command in every kind of wait, and the error names the time-out.
func TestTimeout(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	silent := func(scheme string) string {
		u := scheme + "://" + l.Addr().String()
		if hasDisc(scheme) {
			u += "/d"
		}
		return u
	}
	for _, scheme := range transport.Names() {
		if scheme == "sdp" || scheme == "tcp" {
			fails(t, 1, "not done after 100ms", "get", at(silent(scheme), "f"), "-o", "-", "--timeout", "100ms")
		}
		fails(t, 1, "not done after 100ms", "ping", silent(scheme), "--timeout", "100ms")
	}
	work := t.TempDir()
	random(t, filepath.Join(work, "f"), 10)
	for _, args := range [][]string{
		{"ls", silent("iwarp")}, {"put", filepath.Join(work, "f"), at(silent("sdp"), "f")}, {"sync", work, silent("vitcp")},
		{"nc", silent("tcp")}, {"get", at(silent("iwarp"), "f"), "-r", "-o", filepath.Join(work, "d"), "--retry", "9"},
		{"rping", "-c", "-a", "127.0.0.1", "-p", fmt.Sprint(l.Addr().(*net.TCPAddr).Port)},
		{"portmap", "query", "127.0.0.1:5000", "--server", "127.0.0.1:9", "--retry", "99"},
		{"bench", "--client", silent("tcp"), "--transports", "tcp"},
		{"ping", "tcp://127.0.0.1:1", "--wait", "1h"}, {"ping", "tcp://127.0.0.1:1", "--retry", "1000"},
	} {
		fails(t, 1, "not done after 100ms", append(args, "--timeout", "100ms")...)
	}
	_, urls := start(t, 1, "echo", "--listen", "tcp://127.0.0.1:0")
	for count, want := range map[string]int{"0": 0, "1000000000": 1} { // for count 0, the time-out is no error
		t.Run("ping -c "+count, func(t *testing.T) {
			t.Parallel()
			var r result
			// Without a round trip in time there is no summary.
			for _, limit := range []string{"1s", "5s", "30s"} {
				r = run(t, "ping", urls[0], "-c", count, "--timeout", limit, "-q")
				if strings.Contains(r.stdout, "min/median") {
					break
				}
			}
			if r.code != want || !strings.Contains(r.stdout, "min/median") ||
				want == 1 && !strings.Contains(r.last(), "not done after") {
				t.Errorf("exit %d, %q, %q", r.code, r.stdout, r.last())
			}
		})
	}
}

// TestRetry: a copy with --retry continues after the server has died and another server has
// started. A refused request is not repeated.
func TestRetry(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			size := 16 << 20
			if testkit.LongRuns() {
				size *= 2
			}
			body := random(t, filepath.Join(root, "f"), size)
			u := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", fmt.Sprintf(":%d", freePort(t)), 1)
			serve := func() *proc {
				p, _ := start(t, 1, "serve", "--root", root, "--writable", "--listen", u, "--log-level", "info")
				return p
			}

			one := serve()
			if n, stderr, code := interrupted(t, at(u, "f"), func() {
				one.stop(syscall.SIGKILL)
				one = serve()
			}); code != 0 || n != string(body) || !strings.Contains(stderr, "trying again") {
				t.Errorf("exit %d, %d bytes: %s", code, len(n), stderr)
			}
			if n, stderr, code := interrupted(t, at(u, "f"), func() {
				one.stop(syscall.SIGKILL)
				body = random(t, filepath.Join(root, "f"), size-1)
				one = serve()
			}); code != 1 || len(n) >= size-1 || !strings.Contains(stderr, "SHA-256 differs") {
				t.Errorf("the file changed: exit %d, %d bytes: %s", code, len(n), stderr)
			}

			// A put finds a server started late, and does not report the failed attempts.
			one.stop(syscall.SIGKILL)
			cl, _ := start(t, 0, "put", filepath.Join(root, "f"), at(u, "stored"), "--retry", "20")
			cl.waitStderr("trying again")
			serve()
			if code := cl.wait(); code != 0 {
				t.Errorf("exit %d: %s", code, cl.stderr())
			}
			same(t, filepath.Join(root, "stored"), body)

			r := run(t, "get", at(u, "none"), "-o", "-", "--retry", "20")
			if r.code != 1 || strings.Contains(r.stderr, "trying again") || !strings.Contains(r.last(), "not found") {
				t.Errorf("exit %d: %s", r.code, r.stderr)
			}
		})
	}
	fails(t, 2, "negative", "ping", "tcp://h:1", "--retry", "-1")
}

// interrupted runs a get that blocks after 4 MiB, because nothing reads the output until meanwhile
// has returned. got is the output.
func interrupted(t *testing.T, u string, meanwhile func()) (got, stderr string, code int) {
	t.Helper()
	c := command(t.Context(), "get", u, "-o", "-", "--retry", "20", "--timeout", "5m")
	pipe, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs, out strings.Builder
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(&out, pipe, 4<<20); err != nil {
		t.Fatal(err)
	}
	meanwhile()
	io.Copy(&out, pipe)
	c.Wait()
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// number returns the number that pattern finds in s.
func number(t *testing.T, pattern, s string) int {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(s)
	if m == nil {
		t.Fatalf("no %s in %q", pattern, s)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// TestRetryPing: ping and rping continue with a restarted server.
func TestRetryPing(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			u := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", fmt.Sprintf(":%d", freePort(t)), 1)
			server, _ := start(t, 1, "echo", "--listen", u)
			cl, _ := start(t, 0, "ping", u, "-c", "0", "-i", "10ms", "--retry", "20")
			cl.line()
			server.stop(syscall.SIGKILL)
			cl.waitStderr("trying again")
			failed := number(t, `round trip (\d+):`, cl.stderr())
			start(t, 1, "echo", "--listen", u)
			for number(t, `seq=(\d+)`, cl.line()) < failed { // lines of the first server may still come
			}
			if code := cl.stop(syscall.SIGINT); code != 0 {
				t.Errorf("exit %d: %s", code, cl.stderr())
			}
		})
	}
	t.Run("rping", func(t *testing.T) {
		t.Parallel()
		port := fmt.Sprint(freePort(t))
		cl, _ := start(t, 0, "rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "3", "--retry", "20")
		cl.waitStderr("trying again")
		start(t, 1, "rping", "-s", "-a", "127.0.0.1", "-p", port)
		if code := cl.wait(); code != 0 {
			t.Errorf("exit %d: %s", code, cl.stderr())
		}
	})
}

// TestRetryPingLost: ping does not repeat a lost round trip after reconnecting.
func TestRetryPingLost(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.ReadFull(c, make([]byte, 64))
			c.Close()
		}
	}()
	fails(t, 1, "round trip 2", "ping", "tcp://"+l.Addr().String(), "-c", "2", "-i", "0", "--retry", "5")
}
