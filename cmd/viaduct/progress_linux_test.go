package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// onTerminal runs a command whose stderr is a terminal and returns what that
// showed.
func onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIPPED: no pseudo terminals: %v", err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIPPED: no pseudo terminals: %v", err)
	}
	unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200})
	c := command(t.Context(), args...)
	c.Stderr = slave
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	shown, _ := io.ReadAll(master) // EIO when the last has closed the terminal
	if err := c.Wait(); err != nil {
		t.Errorf("viaduct %s: %v\n%s", args[0], err, shown)
	}
	return string(shown)
}

// TestDemoBar: the bar of a row counts the bytes of the file, in each round.
func TestDemoBar(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	random(t, file, 3<<20)
	shown := onTerminal(t, "demo", file)
	totals := regexp.MustCompile(`/ ([0-9.]+ \w+)`).FindAllStringSubmatch(shown, -1)
	if len(totals) == 0 {
		t.Fatalf("no bar: %q", shown)
	}
	for _, m := range totals {
		if m[1] != "3.0 MiB" && m[1] != "0 b" {
			t.Errorf("a total of %s, want 3.0 MiB", m[1])
		}
	}
}

// TestPutBar: while a file is hashed here, and while the server does it, the bar
// says so.
func TestPutBar(t *testing.T) {
	root := t.TempDir()
	src := filepath.Join(t.TempDir(), "f")
	if f, err := os.Create(src); err != nil || f.Truncate(512<<20) != nil {
		t.Fatal(err)
	}
	_, urls := start(t, 2, "serve", "--root", root, "--writable", "--listen", "tcp://127.0.0.1:0", "--listen", "vitcp://127.0.0.1:0/x")
	if shown := onTerminal(t, "put", src, at(urls[0], "a")); !strings.Contains(shown, "hashing") {
		t.Errorf("tcp: %q", shown)
	}
	os.Remove(filepath.Join(root, "a"))
	if shown := onTerminal(t, "put", src, at(urls[1], "b")); !strings.Contains(shown, "the server verifies") {
		t.Errorf("vitcp: %q", shown)
	}
}
