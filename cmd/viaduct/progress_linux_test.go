package main

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/testkit"
)

// terminal returns both ends of a terminal of 50 lines.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIPPED: no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unlock(master)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIPPED: no pseudo terminals: %v", err)
	}
	unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200})
	return master, slave
}

// unlock unlocks the slave end of a terminal, and returns the terminal's number. unlock does not
// call Fd, because reads would then block without regard to deadlines.
func unlock(master *os.File) (n int, err error) {
	raw, err := master.SyscallConn()
	if err != nil {
		return 0, err
	}
	use := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	return n, errors.Join(use, err)
}

// onTerminal runs a command whose stderr is a terminal, and returns the terminal's content.
func onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	return watchTerminal(t, false, func(string) {}, args...)
}

// watchTerminal is onTerminal, and also calls seen with all text shown so far, each time more
// appears. If both is set, stdout is the terminal too. A command running longer than patience gets
// SIGQUIT, so that the failure shows the goroutines.
func watchTerminal(t *testing.T, both bool, seen func(shown string), args ...string) string {
	t.Helper()
	master, slave := terminal(t)
	c := command(t.Context(), args...)
	c.Stderr = slave
	if both {
		c.Stdout = slave
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	var shown []byte
	asked := false
	master.SetReadDeadline(time.Now().Add(patience))
	for b := make([]byte, 4096); ; {
		n, err := master.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && !asked {
			t.Errorf("viaduct %s has not ended after %v", args[0], patience)
			asked = true
			c.Process.Signal(unix.SIGQUIT)
			master.SetReadDeadline(time.Now().Add(10 * time.Second))
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the terminal is open 10 s after SIGQUIT")
			c.Process.Kill()
		}
		if err != nil {
			break // EIO after the last process has closed the terminal
		}
		shown = append(shown, b[:n]...)
		seen(string(shown))
	}
	if err := c.Wait(); err != nil {
		t.Errorf("viaduct %s: %v\n%s", args[0], err, shown)
	}
	return string(shown)
}

// TestDemoBar: in each round, the total of the bar is the size of the file.
func TestDemoBar(t *testing.T) {
	lengthy(t, "7 s")
	t.Parallel()
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

// TestPutBar: once the server has all bytes of a file, the bar reports verification by the server,
// until the response arrives.
func TestPutBar(t *testing.T) {
	t.Parallel()
	src := filepath.Join(t.TempDir(), "f")
	body := random(t, src, 3<<20)
	sum := sha256.Sum256(body)
	noted := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n != int64(len(body)) || err != nil {
			t.Errorf("%d bytes came: %v", n, err)
		}
		select {
		case <-noted:
		case <-time.After(patience):
			t.Error("the bar does not say what is waited for")
		}
		w.Header().Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
		w.WriteHeader(http.StatusCreated)
	}))
	defer srv.Close()
	var once sync.Once
	watchTerminal(t, false, func(shown string) {
		if strings.Contains(shown, "the server verifies") {
			once.Do(func() { close(noted) })
		}
	}, "put", src, strings.Replace(srv.URL, "http:", "tcp:", 1)+"/a")
}

// TestTotalDraws: a bar is drawn every 100 ms while a goroutine counts files. Neither may block.
func TestTotalDraws(t *testing.T) {
	t.Parallel()
	master, slave := terminal(t)
	shown := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, master)
		shown <- n
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		bar := (&shell.Env{Stderr: slave}).Total("get")
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			bar.Found(1)
		}
		bar.Done()
	}()
	testkit.Await(t, "the end of the bar", ended)
	slave.Close()
	if n := testkit.Await(t, "the end of the terminal", shown); n == 0 {
		t.Error("nothing was drawn")
	}
}

// TestTreeBar: on a terminal, a copy of many files has one bar with the number of files, their
// bytes, the rate and the time left. If stdout is no terminal, put prints a line per file.
func TestTreeBar(t *testing.T) {
	lengthy(t, "9 s")
	t.Parallel()
	from := t.TempDir()
	sow(t, from, 2, 20, 3<<20)
	names := files(t, from)
	for _, scheme := range []string{"vitcp", "sdp"} {
		root := t.TempDir()
		_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", listenURL(scheme, "127.0.0.1"))
		last := regexp.MustCompile(`put (\d+) of (\d+) files ([0-9.]+ \w+) / ([0-9.]+ \w+)`)
		for _, c := range []struct {
			both bool
			args []string
		}{{true, []string{"put", "-r", from, at(urls[0], "a/")}}, {false, []string{"put", "-r", from, at(urls[0], "b/")}}} {
			shown := watchTerminal(t, c.both, func(string) {}, c.args...)
			all := last.FindAllStringSubmatch(shown, -1)
			if len(all) == 0 {
				t.Fatalf("%s: no bar: %q", scheme, shown)
			}
			if m := all[len(all)-1]; m[1] != fmt.Sprint(len(names)) || m[2] != m[1] || m[3] != m[4] {
				t.Errorf("%s: the bar ends as %q", scheme, m[0])
			}
			if strings.Contains(shown, filepath.Base(from)+"/long") {
				t.Errorf("%s: lines between the bar: %q", scheme, shown)
			}
			if c.both != strings.Contains(shown, "verified") {
				t.Errorf("%s: results on the terminal %v: %q", scheme, c.both, shown)
			}
		}
		shown := watchTerminal(t, true, func(string) {}, "get", "-r", at(urls[0], "a/"+filepath.Base(from)),
			"-o", filepath.Join(t.TempDir(), "copy"))
		if !strings.Contains(shown, fmt.Sprintf("get %d of %d files", len(names), len(names))) {
			t.Errorf("%s: get -r shows %q", scheme, shown)
		}
		if r := good(t, "put", "-r", from, at(urls[0], "c/")); strings.Count(r.stdout, "\n") != len(names)+1 ||
			r.stderr != "" {
			t.Errorf("%s: off a terminal %q, %q", scheme, r.stdout, r.stderr)
		}
		alike(t, from, filepath.Join(root, "b", filepath.Base(from)))
	}
}
