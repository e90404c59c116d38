//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestGetInto: get writes into a directory, into a device and into a pipe.
func TestGetInto(t *testing.T) {
	t.Parallel()
	// The test uses another name for the device: otherwise, a command replacing the device by a
	// file would damage the system.
	null := filepath.Join(t.TempDir(), "null")
	if err := os.Symlink(os.DevNull, null); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			root, work := t.TempDir(), t.TempDir()
			body := random(t, filepath.Join(root, "f"), 300_000)
			os.Mkdir(filepath.Join(root, "d"), 0o700)
			_, urls := start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"))
			u := at(urls[0], "f")

			good(t, "get", u, "-o", work)
			same(t, filepath.Join(work, "f"), body)
			os.Remove(filepath.Join(work, "f"))
			good(t, "get", u, "-o", work+"/")
			same(t, filepath.Join(work, "f"), body)
			fails(t, 1, "there is no directory", "get", u, "-o", filepath.Join(work, "none")+"/")

			if d := document(t, good(t, "get", u, "-o", null, "--json")); d["verified"] != true ||
				d["bytes"] != 300000.0 {
				t.Errorf("%v", d)
			}
			fails(t, 2, "--resume", "get", u, "-o", null, "--resume")

			fifo := filepath.Join(work, "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			cl, _ := start(t, 0, "get", u, "-o", fifo)
			r, err := os.Open(fifo)
			if err != nil {
				t.Fatal(err)
			}
			r.SetReadDeadline(time.Now().Add(patience))
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes through the pipe, %v", len(got), err)
			}
			r.Close()
			if code := cl.wait(); code != 0 {
				t.Errorf("exit %d: %s", code, cl.stderr())
			}
			// An interrupted command ends even while writing to a pipe without a reader.
			soon(t, "the end of a get to a pipe without a reader", func() time.Duration {
				cl, _ := start(t, 0, "get", u, "-o", fifo, "--metrics", "127.0.0.1:0")
				cl.waitStderr("msg=metrics") // before that line, the signal would kill the command
				select {
				case <-cl.done:
					t.Errorf("ended without a reader: %s", cl.stderr())
				case <-time.After(100 * time.Millisecond):
				}
				return stopped(t, cl, syscall.SIGINT, 1)
			})
			if got := strings.Join(files(t, work), " "); got != "f fifo" {
				t.Errorf("left %s", got)
			}

			// get refuses a directory with the error "is a directory", also over HTTP.
			fails(t, 1, "is a directory", "get", at(urls[0], "d"), "-o", filepath.Join(work, "x"))
			fails(t, 1, "is a directory", "get", at(urls[0], "d/"), "-o", filepath.Join(work, "x"))
			if got := strings.Join(files(t, work), " "); got != "f fifo" {
				t.Errorf("left %s", got)
			}
		})
	}
}

// stopped ends a command with a signal, checks the exit code, and returns how long the end took.
func stopped(t *testing.T, p *proc, s syscall.Signal, code int) time.Duration {
	t.Helper()
	began := time.Now()
	if got := p.stop(s); got != code {
		t.Errorf("viaduct %s: exit %d, want %d\n%s", p.cmd.Args[1], got, code, p.stderr())
	}
	return time.Since(began)
}

// soon checks the end of an interrupted command within interruptBound. try interrupts a command and
// returns the time until the exit. soon calls try up to twenty times, because a process may wait
// longer than interruptBound for a processor.
func soon(t *testing.T, what string, try func() time.Duration) {
	t.Helper()
	least := time.Hour
	for range 20 {
		if least = min(least, try()); least <= interruptBound {
			return
		}
	}
	t.Errorf("%s took %v", what, least)
}

// interruptBound is above the 0.7 seconds an interrupted command waits for a peer, and below the 2,
// 3, 5 and 10 seconds of the protocols' own timers.
const interruptBound = 1800 * time.Millisecond

// TestInterruptStopped: an interrupted command ends although the peer is suspended.
func TestInterruptStopped(t *testing.T) {
	lengthy(t, "12 s")
	t.Parallel()
	root := t.TempDir()
	if f, err := os.Create(filepath.Join(root, "big")); err != nil || f.Truncate(1<<40) != nil {
		t.Fatal(err)
	}
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			// stopOne starts a server and a client. With suspendServer, stopOne suspends the server
			// and interrupts the client, otherwise the reverse.
			stopOne := func(server []string, client func(url string) []string, suspendServer bool, sig syscall.Signal, code int) func() time.Duration {
				return func() time.Duration {
					srv, urls := start(t, 1, server...)
					args := client(urls[0])
					cl, _ := start(t, 0, args...)
					if args[0] == "get" {
						moving(t, cl)
					} else {
						cl.line()
					}
					suspended, interrupted := srv, cl
					if !suspendServer {
						suspended, interrupted = cl, srv
					}
					suspended.cmd.Process.Signal(syscall.SIGSTOP)
					defer suspended.cmd.Process.Kill()
					return stopped(t, interrupted, sig, code)
				}
			}
			listen := listenURL(scheme, "127.0.0.1")
			serve := []string{"serve", "--root", root, "--listen", listen}
			get := func(url string) []string {
				return []string{"get", at(url, "big"), "-o", os.DevNull, "--metrics", "127.0.0.1:0"}
			}
			echo := []string{"echo", "--listen", listen}
			ping := func(url string) []string { return []string{"ping", url, "-c", "0", "-i", "1ms"} }
			soon(t, "the end of a get from a stopped server", stopOne(serve, get, true, syscall.SIGINT, 1))
			soon(t, "the end of a ping to a stopped server", stopOne(echo, ping, true, syscall.SIGINT, 0))
			soon(t, "the end of the server of a stopped ping", stopOne(echo, ping, false, syscall.SIGINT, 0))
			soon(t, "the end of the server of a stopped get", stopOne(serve, get, false, syscall.SIGTERM, 0))
		})
	}
}

// TestOnePart: two gets of the same name do not write to the same file.
func TestOnePart(t *testing.T) {
	t.Parallel()
	root, work := t.TempDir(), t.TempDir()
	body := random(t, filepath.Join(root, "f"), 100_000)
	if f, err := os.Create(filepath.Join(root, "big")); err != nil || f.Truncate(1<<40) != nil {
		t.Fatal(err)
	}
	_, urls := start(t, 1, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0")
	out := filepath.Join(work, "out")
	first, _ := start(t, 0, "get", at(urls[0], "big"), "-o", out)
	eventually(t, "a part", func() bool { st, err := os.Stat(out + ".part"); return err == nil && st.Size() > 0 })
	// A suspended process keeps the lock, and does not fill the disk while the others start.
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	fails(t, 1, "another process is writing", "get", at(urls[0], "f"), "-o", out)
	fails(t, 1, "another process is writing", "get", at(urls[0], "f"), "-o", out, "--resume")
	if st, err := os.Stat(out + ".part"); err != nil || st.Size() == 0 {
		t.Errorf("the part of the first was cut: %v", err)
	}
	first.cmd.Process.Kill()
	first.wait()
	good(t, "get", at(urls[0], "f"), "-o", out) // a part that is not locked is reused
	same(t, out, body)
}

// TestServerDies: a ping whose server is killed still prints statistics, and no verb blames the
// client.
func TestServerDies(t *testing.T) {
	lengthy(t, "8 s")
	t.Parallel()
	root := t.TempDir()
	if f, err := os.Create(filepath.Join(root, "big")); err != nil || f.Truncate(1<<40) != nil {
		t.Fatal(err)
	}
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			srv, urls := start(t, 1, "echo", "--listen", listenURL(scheme, "127.0.0.1"))
			cl, _ := start(t, 0, "ping", urls[0], "-c", "0", "-i", "1ms")
			cl.line()
			srv.cmd.Process.Kill()
			if code := cl.wait(); code != 1 {
				t.Errorf("ping: exit %d", code)
			}
			last := ""
			for l := range cl.out {
				last = l
			}
			if !strings.Contains(last, "min/median/p90/p99/max") {
				t.Errorf("last line %q", last)
			}
			blamed(t, cl)

			for _, verb := range []string{"get", "put"} {
				srv, urls := start(t, 1, "serve", "--root", t.TempDir(),
					"--writable", "--listen", listenURL(scheme, "127.0.0.1"))
				args := []string{"put", filepath.Join(root, "sparse"), at(urls[0], "x")}
				if verb == "get" {
					srv.cmd.Process.Kill()
					srv, urls = start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"))
					args = []string{"get", at(urls[0], "big"), "-o", os.DevNull}
				} else if f, err := os.Create(args[1]); err != nil || f.Truncate(400<<20) != nil {
					t.Fatal(err)
				}
				cl, _ := start(t, 0, append(args, "--metrics", "127.0.0.1:0")...)
				moving(t, cl)
				srv.cmd.Process.Kill()
				if code := cl.wait(); code == 0 && verb == "get" {
					t.Errorf("%s: exit 0", verb)
				} else if code != 0 {
					blamed(t, cl)
				}
			}
		})
	}
}

func blamed(t *testing.T, p *proc) {
	t.Helper()
	if s := p.stderr(); strings.Contains(s, "use of closed") || strings.Contains(s, "--log-level debug") {
		t.Errorf("%s", s)
	}
}

// TestTruncated: both sides report the truncation of a file during the transfer.
func TestTruncated(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"iwarp", "fcvi"} {
		t.Run(scheme, func(t *testing.T) {
			root := t.TempDir()
			big := filepath.Join(root, "big")
			if f, err := os.Create(big); err != nil || f.Truncate(1<<40) != nil {
				t.Fatal(err)
			}
			srv, urls := start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"))
			cl, _ := start(t, 0, "get", at(urls[0], "big"), "-o", os.DevNull, "--metrics", "127.0.0.1:0")
			moving(t, cl)
			if err := os.Truncate(big, 1000); err != nil {
				t.Fatal(err)
			}
			code := cl.wait()
			// Over FC-VI the end of the connection may overtake the server's report.
			reported := scheme == "fcvi" || strings.Contains(cl.stderr(), "shrank")
			if code != 1 || !reported || strings.Contains(cl.stderr(), "STag") {
				t.Errorf("exit %d, %s", code, cl.stderr())
			}
			srv.waitStderr("the file shrank")
		})
	}
}
