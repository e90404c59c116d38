//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/sdp"
)

// need returns the path of a program. If the program is not installed, need skips the test and
// names pkg.
func need(t *testing.T, program, pkg string) string {
	t.Helper()
	withPrograms(t, program)
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("SKIPPED: %s is not installed (apt-get install %s)", program, pkg)
	}
	return path
}

// An explained is an output line of run --explain --json.
type explained struct {
	Call, Program, Local, Remote, Path, Why string
	Pid                                     int
	Summary                                 map[string]int64
}

// summaryOf returns the counters written by the supervisor after the end of the program, or nil.
// The counters need not be on the last line, because a dial in progress may end later.
func summaryOf(es []explained) map[string]int64 {
	for _, e := range es {
		if e.Summary != nil {
			return e.Summary
		}
	}
	return nil
}

// runRun runs a program under viaduct run. It also returns the lines of --explain.
func runRun(t *testing.T, flags []string, program ...string) (result, []explained) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "explain")
	r := run(t, append(append([]string{"run", "--json", "--explain=" + file}, flags...), append([]string{"--"}, program...)...)...)
	return r, allExplained(t, file)
}

// allExplained returns the lines of --explain once the supervisor has ended. The command ends with
// the program, and the supervisor may still have lines to write about the last connections.
func allExplained(t *testing.T, file string) []explained {
	t.Helper()
	flag := []byte("--explain=" + file + "\x00")
	eventually(t, "end of the supervisor", func() bool {
		processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		return !slices.ContainsFunc(processes, func(p string) bool {
			b, _ := os.ReadFile(p)
			return bytes.Contains(b, flag)
		})
	})
	return readExplained(t, file)
}

// readExplained returns the complete lines of --explain. While the supervisor writes a line, a
// reader may find only the first half.
func readExplained(t *testing.T, file string) (out []explained) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var e explained
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, e)
	}
	return out
}

// count returns the number of events for the given call and path.
func count(es []explained, call, path string) (n int) {
	for _, e := range es {
		if e.Call == call && e.Path == path {
			n++
		}
	}
	return n
}

// serveFile starts a file server over SDP and returns the server's address, and the bytes of /a.bin
// there.
func serveFile(t *testing.T, size int) (at string, want []byte) {
	t.Helper()
	root := t.TempDir()
	want = make([]byte, size)
	rand.Read(want)
	if err := os.WriteFile(filepath.Join(root, "a.bin"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	_, urls := start(t, 1, "serve", "--root", root, "--listen", "sdp://127.0.0.1:0")
	return strings.TrimPrefix(urls[0], "sdp://"), want
}

// curl's connection is carried over SDP, whether connect waits for the dial or the socket is held.
func TestRunCurl(t *testing.T) {
	t.Parallel()
	need(t, "curl", "curl")
	at, want := serveFile(t, 3<<20)
	for _, bound := range []string{"0", "1s"} {
		t.Run("bound="+bound, func(t *testing.T) {
			got := filepath.Join(t.TempDir(), "got")
			r, es := runRun(t, []string{"--to", at, "--bound", bound}, "curl", "-sS", "-o", got,
				"-w", "%{remote_ip}:%{remote_port}", "http://"+at+"/a.bin")
			if r.code != 0 || r.stdout != at {
				t.Fatalf("exit %d, remote %q, want %q\n%s", r.code, r.stdout, at, r.stderr)
			}
			if b, err := os.ReadFile(got); err != nil || !bytes.Equal(b, want) {
				t.Fatalf("%d bytes came, want %d: %v", len(b), len(want), err)
			}
			if count(es, "connect", "sdp") != 1 || es[0].Program != "curl" {
				t.Errorf("not carried once by curl: %+v", es)
			}
		})
	}
}

// A program whose connections are not carried behaves as usual, and the exit code is returned.
func TestRunExit(t *testing.T) {
	t.Parallel()
	notExec := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(notExec, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		code int
		last string
		args []string
	}{
		{0, "", []string{"--", "true"}},
		{7, "", []string{"--", "sh", "-c", "exit 7"}},
		{137, "", []string{"--", "sh", "-c", "kill -9 $$"}},
		{127, "there is no program", []string{"--", "no-such-program"}},
		{126, "can't be executed", []string{"--", notExec}},
		{126, "is a directory", []string{"--", os.TempDir()}},
		{125, "unknown flag", []string{"--nonsense", "--", "true"}},
		{125, "no IP address or prefix", []string{"--to", "1.2.3", "--", "true"}},
		{125, "no port between", []string{"--to", "1.2.3.4:99999", "--", "true"}},
		{125, "no port between", []string{"--listen", "x", "--", "true"}},
		{125, "a program is missing", nil},
	} {
		r := run(t, append([]string{"run"}, tc.args...)...)
		if r.code != tc.code || !strings.Contains(r.last(), tc.last) {
			t.Errorf("run %v: exit %d, want %d; said %q, want %q in it", tc.args, r.code, tc.code, r.last(), tc.last)
		}
	}
}

// A run inside another run leaves the program to the outer run.
func TestRunNested(t *testing.T) {
	t.Parallel()
	r := run(t, "run", "--", os.Args[0], "run", "--", "sh", "-c", "echo inside; exit 3")
	if r.code != 3 || r.stdout != "inside\n" || !strings.Contains(r.stderr, "inside another viaduct run") {
		t.Errorf("exit %d, %q, %s", r.code, r.stdout, r.stderr)
	}
}

// A served is a program under viaduct run.
type served struct {
	*proc
	file string
}

// startRun starts a program under viaduct run, without a Port Mapper.
func startRun(t *testing.T, flags []string, program ...string) *served {
	t.Helper()
	file := filepath.Join(t.TempDir(), "explain")
	args := append([]string{"run", "--json", "--explain=" + file, "--portmap-listen", "off"}, flags...)
	p, _ := start(t, 0, append(append(args, "--"), program...)...)
	return &served{proc: p, file: file}
}

func (s *served) explained() []explained { s.t.Helper(); return readExplained(s.t, s.file) }

// sdpPort waits until the program's listener at port, or any listener if port is "", is carried. It
// returns the port where the listener accepts SDP.
func (s *served) sdpPort(port string) (sdpPort string) {
	s.t.Helper()
	eventually(s.t, "carried listener at "+port, func() bool {
		for _, e := range s.explained() {
			if e.Call == "listen" && e.Path == "sdp" && strings.HasSuffix(e.Local, ":"+port) ||
				e.Call == "listen" && e.Path == "sdp" && port == "" {
				sdpPort = e.Why[strings.LastIndex(e.Why, ":")+1:]
			}
		}
		return sdpPort != ""
	})
	return sdpPort
}

// echoTrue sends 8 random bytes to the program acceptC at an SDP port. It checks the echo and the
// peer ports seen by the program.
func echoTrue(port string) error {
	c, err := sdp.Dial("127.0.0.1:"+port, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	var want [8]byte
	rand.Read(want[:])
	if _, err := c.Write(want[:]); err != nil {
		return err
	}
	got := make([]byte, 12)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	mine := c.LocalAddr().(*net.TCPAddr).AddrPort().Port()
	if !bytes.Equal(got[:8], want[:]) || binary.BigEndian.Uint16(got[8:]) != mine ||
		binary.BigEndian.Uint16(got[10:]) != mine {
		return fmt.Errorf("sent %x from port %d, got %x", want, mine, got)
	}
	return nil
}

// No connection is lost or has wrong bytes while signals interrupt accept and every thread of the
// supervisor. The program's calls fail or are restarted, as without viaduct run.
func TestRunAcceptSignals(t *testing.T) {
	lengthy(t, "16 s")
	t.Parallel()
	program := buildC(t, acceptC)
	for _, us := range []string{"1000", "200"} {
		for _, restart := range []string{"0", "1"} {
			t.Run(us+"us/restart="+restart, func(t *testing.T) {
				s := startRun(t, []string{"--listen", "any"}, program, us, restart)
				port := s.sdpPort("")
				end := stormThreads(s.supervisor())
				n := 750
				if !testkit.LongRuns() || raceDetector {
					n = 100
				}
				var wg sync.WaitGroup
				var left atomic.Int64
				left.Store(int64(n))
				for range 6 {
					wg.Go(func() {
						for left.Add(-1) >= 0 && !t.Failed() {
							if err := echoTrue(port); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				end()
				if code := s.stop(syscall.SIGTERM); code != 128+15 {
					t.Errorf("exit %d, want that of SIGTERM; %s", code, s.stderr())
				}
				if got := count(s.explained(), "accept", "sdp"); got != n {
					t.Errorf("%d connections accepted, want %d", got, n)
				}
			})
		}
	}
}
