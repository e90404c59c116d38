//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/transport"
)

// TestWait: with --wait a client may be started before its server.
func TestWait(t *testing.T) {
	for _, scheme := range transport.Names() {
		t.Run(scheme, func(t *testing.T) {
			u := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", fmt.Sprintf(":%d", freePort(t)), 1)
			cl, _ := start(t, 0, "ping", u, "-c", "1", "--wait", "1m", "--json")
			select {
			case <-cl.done:
				t.Fatalf("the client did not wait: %s", cl.stderr())
			case <-time.After(200 * time.Millisecond): // it has been refused at least once
			}
			start(t, 1, "echo", "--listen", u)
			if code := cl.wait(); code != 0 {
				t.Errorf("exit %d: %s", code, cl.stderr())
			}
			// A server that does not come is reported as it is.
			nowhere := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", ":1", 1)
			began := time.Now()
			fails(t, 1, "refused", "ping", nowhere, "-c", "1", "--wait", "100ms")
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("waited %v", d)
			}
		})
	}
	port := fmt.Sprint(freePort(t))
	cl, _ := start(t, 0, "rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "1", "--wait", "1m")
	srv, _ := start(t, 1, "rping", "-s", "-a", "127.0.0.1", "-p", port)
	if code := cl.wait(); code != 0 {
		t.Errorf("rping: exit %d: %s", code, cl.stderr())
	}
	srv.wait()

	at := "tcp://127.0.0.1:" + fmt.Sprint(freePort(t))
	cl, _ = start(t, 0, "bench", "--client", at, "--transports", "tcp", "--ops", "wait", "--sizes", "64", "--rounds", "1", "--time", "5ms", "--wait", "1m")
	select {
	case <-cl.done:
		t.Fatalf("bench did not wait: %s", cl.stderr())
	case <-time.After(200 * time.Millisecond):
	}
	start(t, 1, "bench", "--server", at)
	if code := cl.wait(); code != 0 {
		t.Errorf("bench: exit %d: %s", code, cl.stderr())
	}
}

// TestReadme runs the commands of README.md as they stand, in a shell, with
// other ports. The lines of one block share a directory.
func TestReadme(t *testing.T) {
	sh := program(t, "sh")
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	// The shell's $! must be the command itself.
	script := fmt.Sprintf("#!%s\nexec env %s=1 GORACE='atexit_sleep_ms=0 exitcode=66' '%s' \"$@\"\n", sh, asCommand, self)
	if err := os.WriteFile(filepath.Join(bin, "viaduct"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	port := regexp.MustCompile(`\b7\d\d\d\b`)
	var lines []string
	for l := range strings.Lines(string(text)) {
		if c, ok := strings.CutPrefix(l, "    viaduct "); ok {
			c = port.ReplaceAllStringFunc("viaduct "+c, func(p string) string {
				if ports[p] == "" {
					ports[p] = fmt.Sprint(freePort(t))
				}
				return ports[p]
			})
			lines = append(lines, c)
		}
	}
	if len(lines) < 3 {
		t.Fatalf("%d commands in README.md", len(lines))
	}
	for round := range 3 { // a race would not show each time
		work := t.TempDir()
		random(t, filepath.Join(work, "FILE"), 100_000)
		for _, l := range lines {
			c := exec.CommandContext(t.Context(), sh, "-e", "-c", l)
			c.Dir = work
			c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			var out strings.Builder
			c.Stdout, c.Stderr = &out, &out
			c.WaitDelay = patience
			c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
			stop := time.AfterFunc(patience, func() { c.Cancel() })
			err := c.Run()
			stop.Stop()
			syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what the line left running
			if err != nil {
				t.Errorf("round %d: %s: %v\n%s", round, l, err, out.String())
			}
		}
	}
}

// TestRefusal: a server that is down is not taken for one with another
// discriminator.
func TestRefusal(t *testing.T) {
	for _, scheme := range transport.Names() {
		u := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", ":1", 1)
		r := run(t, "ping", u, "-c", "1")
		if r.code != 1 || !strings.Contains(r.last(), "connection refused") || strings.Contains(r.last(), "discriminator") ||
			!strings.Contains(r.last(), "check that the server is running") {
			t.Errorf("%s: exit %d, %s", scheme, r.code, r.last())
		}
	}
}
