//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
	"viaduct/sdp"
)

// openDir returns a new directory with all rights for every user.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "viaduct-run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install copies a program to dir, where every user may run it.
func install(t *testing.T, program, dir string) string {
	t.Helper()
	to := filepath.Join(dir, filepath.Base(program))
	if os.Link(program, to) == nil {
		return to
	}
	// A file that this process writes can't be executed while a child of another test has it open.
	if b, err := exec.Command("cp", program, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, b)
	}
	return to
}

// An asUser describes a user who runs viaduct run.
type asUser struct {
	dir  string // a directory that the user may write
	self string // this test binary
	attr *syscall.SysProcAttr
	uid  int // user of the program, in the test's namespace
}

const nobody = 65534

// users calls f for the user of this test, and for a user in a new user namespace. If the test runs
// as root, users also calls f for an unprivileged user.
func users(t *testing.T, f func(t *testing.T, u *asUser)) {
	make := func(t *testing.T, attr *syscall.SysProcAttr, uid int) *asUser {
		dir := openDir(t)
		return &asUser{dir: dir, self: install(t, os.Args[0], dir), attr: attr, uid: uid}
	}
	t.Run("self", func(t *testing.T) { f(t, make(t, &syscall.SysProcAttr{}, os.Getuid())) })
	t.Run("unprivileged", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("SKIPPED: this test is not root's: the test of this user is one of an unprivileged user")
		}
		f(t, make(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}, nobody))
	})
	t.Run("namespace", func(t *testing.T) {
		one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID, UidMappings: one,
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		try := exec.Command("/bin/true")
		try.SysProcAttr = attr
		if err := try.Run(); err != nil {
			t.Skipf("SKIPPED: this machine makes no user namespace: %v", err)
		}
		f(t, make(t, attr, os.Getuid()))
	})
}

// start starts a program under viaduct run.
func (u *asUser) start(t *testing.T, flags []string, program ...string) *served {
	t.Helper()
	file := filepath.Join(u.dir, "explain."+strconv.Itoa(int(unique.Add(1))))
	args := append([]string{"run", "--json", "--explain=" + file, "--portmap-listen", "off"}, flags...)
	return &served{file: file, proc: startAs(t, u, append(append(args, "--"), program...)...)}
}

var unique atomic.Int64

// startAs starts the command as another user.
func startAs(t *testing.T, u *asUser, args ...string) *proc {
	t.Helper()
	return begin(t, func(c *exec.Cmd) {
		c.Path, c.Dir, c.SysProcAttr = u.self, u.dir, u.attr
		c.Env = append(c.Env, "HOME="+u.dir)
	}, args...)
}

// finish waits for the end of the command and of the supervisor. It returns the command's exit code
// and the lines of --explain.
func (s *served) finish() (code int, es []explained) {
	s.t.Helper()
	code = s.wait()
	return code, allExplained(s.t, s.file)
}

// echoPlain starts an echo server over TCP that counts connections.
func echoPlain(t *testing.T) (port string, count *atomic.Int64) {
	l := listenOn(t, "127.0.0.1")
	count = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return portOf(l.Addr()), count
}

// A target is the server for the programs of these tests: an echo server over TCP, and an echo
// server over SDP to which rule redirects connections. plain counts the connections over TCP.
type target struct {
	port  string
	rule  string
	plain *atomic.Int64
}

func newTarget(t *testing.T) target {
	port, count := echoPlain(t)
	_, sdpPort, _ := net.SplitHostPort(echoSDP(t, "127.0.0.1"))
	return target{port: port, plain: count, rule: "127.0.0.1:" + port + "=:" + sdpPort}
}

// marked sends 8 bytes from an address to serve1 of shapes.c. marked checks the echo and returns
// the mark of the answering process.
func marked(from, port string) (mark int, err error) {
	d := sdp.Dialer{}
	d.Net.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	c, err := d.DialContext(context.Background(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return markedOn(c)
}

func markedOn(c net.Conn) (mark int, err error) {
	c.SetDeadline(time.Now().Add(patience))
	var want [8]byte
	rand.Read(want[:])
	if _, err := c.Write(want[:]); err != nil {
		return 0, err
	}
	got := make([]byte, 16)
	if _, err := io.ReadFull(c, got); err != nil {
		return 0, err
	}
	mine := uint16(c.LocalAddr().(*net.TCPAddr).Port)
	if !bytes.Equal(got[:8], want[:]) || binary.BigEndian.Uint16(got[8:]) != mine ||
		binary.BigEndian.Uint16(got[10:]) != mine {
		return 0, fmt.Errorf("sent %x from port %d, got %x", want, mine, got)
	}
	return int(binary.NativeEndian.Uint32(got[12:])), nil
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("end of process %d", pid), func() bool { return syscall.Kill(pid, 0) != nil })
}

// Calls that could open a connection without the supervisor fail with the kernel's error for
// unknown calls.
func TestRunFilter(t *testing.T) {
	t.Parallel()
	r := run(t, "run", "--", buildCFile(t, "shapes"), "filter", strconv.Itoa(freePort(t)))
	if r.code != 0 {
		t.Errorf("exit %d\n%s", r.code, r.stderr)
	}
	if r.stdout != "" {
		t.Logf("SKIPPED the calls of 32-bit programs: the kernel has none: %s", r.stdout)
	}
}

// A daemon's connections are carried like those of any program. The command ends with the started
// process. The supervisor stays until the daemon has ended.
func TestRunDaemon(t *testing.T) {
	t.Parallel()
	program := buildCFile(t, "shapes")
	t.Run("client", func(t *testing.T) {
		t.Parallel()
		to := newTarget(t)
		done := filepath.Join(t.TempDir(), "done")
		s := startRun(t, []string{"--to", to.rule}, program, "daemon", to.port, done)
		supervisor := s.supervisor()
		s.detached()
		if _, err := os.Stat(done); err == nil {
			t.Error("the command ended with its daemon, not before")
		}
		io.WriteString(s.in, "x")
		gone(t, supervisor)
		if b, err := os.ReadFile(done); err != nil || len(b) == 0 ||
			count(s.explained(), "connect", "sdp") != 1 || to.plain.Load() != 0 {
			t.Errorf("the daemon's connection was not carried: %q, %v, %+v", b, err, s.explained())
		}
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		port := strconv.Itoa(freePort(t))
		s := startRun(t, []string{"--listen", port}, program, "daemon-server", port)
		supervisor := s.supervisor()
		s.detached()
		io.WriteString(s.in, "x")
		if mark, err := marked("127.0.0.4", s.sdpPort(port)); err != nil || mark != 7 {
			t.Errorf("mark %d, %v", mark, err)
		}
		gone(t, supervisor)
	})
}

// detached lets the program leave its daemon behind, and waits for the end of the command. The
// daemon goes on when it has read another byte.
func (s *served) detached() {
	s.t.Helper()
	s.t.Cleanup(func() { s.in.Close() }) // ends a daemon that still waits
	io.WriteString(s.in, "x")
	state, err := s.cmd.Process.Wait() // wait would wait for the daemon, which has the output, too
	if err != nil || state.ExitCode() != 0 {
		s.t.Fatalf("%v, %v\n%s", state, err, s.stderr())
	}
}

// The children of a server share one listener, or each opens a listener at the same address. All
// children are served, and killing one child does not affect another.
func TestRunPrefork(t *testing.T) {
	lengthy(t, "3 s")
	t.Parallel()
	program := buildCFile(t, "shapes")
	for _, how := range []struct{ name, shared string }{{"shared", "1"}, {"reuseport", "0"}} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			port := strconv.Itoa(freePort(t))
			s := startRun(t, []string{"--listen", port}, program, "prefork", port, how.shared)
			first, _ := strconv.Atoi(s.line())
			sdpPort := s.sdpPort(port)
			var mu sync.Mutex
			by := map[int]int{}
			many := func(n int) {
				t.Helper()
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						for range n / 8 {
							mark, err := marked("127.0.0.1", sdpPort)
							if err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							by[mark]++
							mu.Unlock()
						}
					})
				}
				wg.Wait()
			}
			if how.shared == "0" { // all four children listen
				eventually(t, "an answer of each child", func() bool { many(8); return len(by) == 4 || t.Failed() })
			}
			n := 160
			if !testkit.LongRuns() || raceDetector {
				n = 48
			}
			many(n)
			if len(by) < 2 {
				t.Errorf("children that served: %v", by)
			}
			syscall.Kill(first, syscall.SIGKILL)
			gone(t, first)
			before := by[0]
			many(n / 2)
			if by[0] != before {
				t.Error("a dead child answered")
			}
			if code := s.stop(syscall.SIGTERM); code != 128+15 {
				t.Errorf("exit %d; %s", code, s.stderr())
			}
		})
	}
}

// The connections in the queue of a killed child's own listener go to the other children. Only a
// connection that the child has accepted is lost.
func TestRunPreforkKilled(t *testing.T) {
	lengthy(t, "2 s")
	t.Parallel()
	port := strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port}, buildCFile(t, "shapes"), "prefork", port, "0")
	first, _ := strconv.Atoi(s.line())
	sdpPort := s.sdpPort(port)
	by := map[int]bool{}
	eventually(t, "an answer of each child", func() bool {
		if mark, err := marked("127.0.0.1", sdpPort); err == nil {
			by[mark] = true
		}
		return len(by) == 4
	})
	syscall.Kill(first, syscall.SIGSTOP)
	const dials = 40 // a quarter of them to the listener of the stopped child
	results := make(chan error, dials)
	for range dials {
		go func() {
			_, err := marked("127.0.0.1", sdpPort)
			results <- err
		}()
	}
	eventually(t, "answers of the other children", func() bool { return len(results) >= dials/4 })
	time.Sleep(100 * time.Millisecond) // the rest waits
	syscall.Kill(first, syscall.SIGKILL)
	failed := 0
	for range dials {
		if err := <-results; err != nil {
			t.Log(err)
			failed++
		}
	}
	if failed > 1 {
		t.Errorf("%d of %d connections failed", failed, dials)
	}
}

// After the program has closed a carried listener, peers are refused. When the program opens
// another listener at the port, the new listener is carried too.
func TestRunReopen(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	program := buildCFile(t, "shapes")
	port, sdpPort := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port + "=" + sdpPort}, program, "reopen", port)
	for i := range 3 {
		if got := s.line(); got != "listening" {
			t.Fatalf("said %q", got)
		}
		if mark, err := marked("127.0.0.1", sdpPort); err != nil || mark != i {
			t.Fatalf("round %d: mark %d, %v", i, mark, err)
		}
		if got := s.line(); got != "closed" {
			t.Fatalf("said %q", got)
		}
		if i == 0 { // the others reopen at once, before the close is noticed
			eventually(t, "a refusal", func() bool { _, err := marked("127.0.0.1", sdpPort); return err != nil })
			eventually(t, "the end of the listener", func() bool {
				c, err := net.Dial("tcp", "127.0.0.1:"+sdpPort)
				if err == nil {
					c.Close()
				}
				return err != nil
			})
		}
		io.WriteString(s.in, "x")
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit %d; %s", code, s.stderr())
	}
}

// A listener is carried even if it is opened at the very moment when the supervisor notices the
// close of the previous one.
func TestRunFlap(t *testing.T) {
	lengthy(t, "6 s")
	t.Parallel()
	n := 400
	if !testkit.LongRuns() || raceDetector {
		n = 50
	}
	port, sdpPort := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port + "=" + sdpPort}, buildCFile(t, "shapes"), "flap", port, strconv.Itoa(n))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-s.done:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if c, err := new(sdp.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+sdpPort); err == nil {
					c.SetDeadline(time.Now().Add(time.Second))
					echoOnce(c) // this may fail, because the listener may be closed
					c.Close()
				}
				cancel()
			}
		})
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit %d; %s", code, s.stderr())
	}
	wg.Wait()
}

// The supervisor serves a thread with a separate descriptor table from the thread's table, while
// another thread uses the same numbers.
func TestRunOwnTable(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	program := buildCFile(t, "shapes")
	one, two := newTarget(t), newTarget(t)
	r, es := runRun(t, []string{"--to", one.rule, "--to", two.rule}, program, "own-table", one.port, two.port)
	if r.code != 0 {
		t.Fatalf("exit %d\n%s", r.code, r.stderr)
	}
	n := 0
	for _, e := range es {
		if e.Call == "connect" && e.Path == "sdp" && strings.HasSuffix(e.Remote, ":"+one.port) {
			n++
		}
	}
	if n != 20 || one.plain.Load() != 0 || two.plain.Load() != 0 {
		t.Errorf("%d of 20 connections of the thread were carried; plain: %d, %d", n,
			one.plain.Load(), two.plain.Load())
	}
}

// No privilege is needed. Connections are carried both ways, held or not, for an unprivileged user,
// inside a user namespace, and when the program enters a user namespace.
func TestRunUsers(t *testing.T) {
	t.Parallel()
	users(t, func(t *testing.T, u *asUser) {
		t.Parallel()
		program := install(t, buildCFile(t, "shapes"), u.dir)
		to, port := newTarget(t), strconv.Itoa(freePort(t))
		for _, bound := range []string{"0", "1s"} {
			s := u.start(t, []string{"--to", to.rule, "--bound", bound}, program, "connect", to.port, "20")
			if code, es := s.finish(); code != 0 || count(es, "connect", "sdp") != 20 {
				t.Errorf("bound %s: exit %d, %d connections were carried, want 20: %+v\n%s",
					bound, code, count(es, "connect", "sdp"), es, s.stderr())
			}
		}
		s := u.start(t, []string{"--listen", port}, program, "prefork", port, "1")
		s.line()
		if _, err := marked("127.0.0.7", s.sdpPort(port)); err != nil {
			t.Error(err)
		}
		if code := s.stop(syscall.SIGTERM); code != 128+15 {
			t.Errorf("exit %d; %s", code, s.stderr())
		}
		if err := exec.Command("unshare", "-Ur", "true").Run(); err != nil {
			t.Logf("SKIPPED: no user namespace for a program: %v", err)
			return
		}
		s = u.start(t, []string{"--to", to.rule}, "unshare", "-Ur", program, "connect", to.port, "5")
		if code, es := s.finish(); code != 0 || count(es, "connect", "sdp") != 5 {
			t.Errorf("unshare: exit %d, %d connections were carried, want 5\n%s", code,
				count(es, "connect", "sdp"), s.stderr())
		}
	})
}

// Processes that an unprivileged supervisor cannot inspect use plain TCP, and get no connections
// from SDP peers. A supervisor of root can inspect every process.
func TestRunUndumpable(t *testing.T) {
	lengthy(t, "13 s")
	t.Parallel()
	users(t, func(t *testing.T, u *asUser) {
		program := install(t, buildCFile(t, "shapes"), u.dir)
		to, port := newTarget(t), strconv.Itoa(freePort(t))
		s := u.start(t, []string{"--to", to.rule, "--listen", port}, program, "undumpable", to.port, port)
		if got := s.line(); got != "connected" {
			t.Fatalf("said %q", got)
		}
		privileged := u.uid == 0 // root in its own namespace counts
		path := "tcp"
		if privileged {
			path = "sdp"
		}
		if es := s.explained(); count(es, "connect", path) != 1 ||
			count(es, "connect", "sdp")+count(es, "connect", "tcp") != 1 {
			t.Errorf("want a connect by %s: %+v", path, es)
		}
		sdpPort := s.sdpPort(port)
		mark, err := marked("127.0.0.1", sdpPort)
		if privileged && (err != nil || mark != 3) {
			t.Errorf("mark %d, %v", mark, err)
		}
		if !privileged && err == nil {
			t.Error("a process that can't be looked into was given a peer of SDP")
		}
		// Plain peers are served by the process itself.
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if mark, err := markedOn(c); err != nil || mark != 3 {
			t.Errorf("plain peer: mark %d, %v", mark, err)
		}
		s.stop(syscall.SIGTERM)
	})
}

// With --require, calls of a process that cannot be inspected fail.
func TestRunUndumpableRequire(t *testing.T) {
	t.Parallel()
	lengthy(t, "10 s")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: this test is not root's")
	}
	dir := openDir(t)
	u := &asUser{dir: dir, self: install(t, os.Args[0], dir),
		attr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}}
	program := install(t, buildCFile(t, "shapes"), dir)
	to := newTarget(t)
	s := u.start(t, []string{"--require", "--to", to.rule}, program, "undumpable", to.port, strconv.Itoa(freePort(t)))
	code, es := s.finish()
	if code != 9 || !strings.Contains(s.stderr(), "Connection refused") ||
		count(es, "connect", "refused") != 1 || to.plain.Load() != 0 {
		t.Errorf("exit %d, %+v, %d plain connections\n%s", code, es, to.plain.Load(), s.stderr())
	}
}

// The connections of a program that changes its user are still carried by root's supervisor.
func TestRunSetuid(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: this test is not root's, and can't change its user")
	}
	program := buildCFile(t, "shapes")
	to, port := newTarget(t), strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--to", to.rule, "--listen", port}, program, "setuid", to.port, port)
	if got := s.line(); got != "connected" {
		t.Fatalf("said %q", got)
	}
	if mark, err := marked("127.0.0.6", s.sdpPort(port)); err != nil || mark != 3 {
		t.Errorf("mark %d, %v", mark, err)
	}
	code, es := s.finish()
	if code != 0 || count(es, "connect", "sdp") != 1 || count(es, "accept", "sdp") != 1 {
		t.Errorf("exit %d, %+v\n%s", code, es, s.stderr())
	}
}

// A program without free descriptors can connect. Its accept returns EMFILE, and the peer waits
// until the program has a free descriptor.
func TestRunEMFILE(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	program := buildCFile(t, "shapes")
	to, port := newTarget(t), strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--to", to.rule, "--listen", port}, program, "emfile", to.port, port)
	if got := s.line(); got != "connected" {
		t.Fatalf("said %q", got)
	}
	if mark, err := marked("127.0.0.1", s.sdpPort(port)); err != nil || mark != 3 {
		t.Errorf("mark %d, %v", mark, err)
	}
	code, es := s.finish()
	if code != 0 || count(es, "connect", "sdp") != 1 || count(es, "accept", "sdp") != 1 {
		t.Errorf("exit %d, %+v\n%s", code, es, s.stderr())
	}
}

// limited starts a program under viaduct run, both with few descriptors.
func limited(t *testing.T, n int, flags []string, program ...string) *served {
	t.Helper()
	file := filepath.Join(t.TempDir(), "explain")
	args := append([]string{"run", "--json", "--explain=" + file, "--portmap-listen", "off"}, flags...)
	p := begin(t, func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", `ulimit -n "$0" && exec "$@"`, strconv.Itoa(n), c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
	}, append(append(args, "--"), program...)...)
	return &served{file: file, proc: p}
}

// A supervisor without free descriptors leaves connections plain and blocks no call. It carries
// again when descriptors are free.
func TestRunSupervisorEMFILE(t *testing.T) {
	lengthy(t, "2 s")
	t.Parallel()
	program := buildCFile(t, "shapes")
	t.Run("connect", func(t *testing.T) {
		t.Parallel()
		to := newTarget(t)
		s := limited(t, 64, []string{"--to", to.rule}, program, "many", to.port, "50")
		if got := s.line(); got != "closed" {
			t.Fatalf("said %q\n%s", got, s.stderr())
		}
		carried := count(s.explained(), "connect", "sdp")
		if plain := to.plain.Load(); carried < 5 || plain < 5 || int(plain)+carried != 50 {
			t.Errorf("%d connections were carried, %d were plain, want 50 together and some of both", carried, plain)
		}
		if !slices.ContainsFunc(s.explained(), func(e explained) bool { return e.Path == "tcp" && strings.Contains(e.Why, "too many open files") }) {
			t.Errorf("the reason is not told: %+v", s.explained())
		}
		// The descriptors become free only after the end of each connection has passed both relays.
		supervisor := s.supervisor()
		eventually(t, "the supervisor's descriptors", func() bool { return descriptors(t, supervisor) < 30 })
		io.WriteString(s.in, "x")
		if code := s.wait(); code != 0 {
			t.Errorf("exit %d; %s", code, s.stderr())
		}
		if n := count(s.explained(), "connect", "sdp"); n != carried+1 {
			t.Errorf("%d connections were carried, want one more than %d", n, carried)
		}
	})
	t.Run("accept", func(t *testing.T) {
		t.Parallel()
		port := strconv.Itoa(freePort(t))
		s := limited(t, 64, []string{"--listen", port}, program, "serve-many", port)
		sdpPort := s.sdpPort(port)
		dial := func(limit time.Duration) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			c, err := new(sdp.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+sdpPort)
			if err == nil {
				c.SetDeadline(time.Now().Add(limit))
			}
			return c, err
		}
		const enough = 5 // connections served before the shortage
		var open []net.Conn
		good := 0
		for bad := 0; good < 50 && bad < 4; {
			limit := 2 * time.Second
			if good < enough {
				limit = patience
			}
			c, err := dial(limit)
			if err == nil {
				open = append(open, c)
				err = echoOnce(c)
			}
			if err == nil {
				good++
				continue
			}
			if bad++; good < enough {
				t.Fatalf("only %d connections were served: %v", good, err)
			}
		}
		for _, c := range open {
			c.Close()
		}
		eventually(t, "service after the shortage", func() bool {
			c, err := dial(2 * time.Second)
			if err != nil {
				return false
			}
			defer c.Close()
			return echoOnce(c) == nil
		})
		if code := s.stop(syscall.SIGTERM); code != 128+15 {
			t.Errorf("exit %d; %s", code, s.stderr())
		}
	})
	// An edge-triggered program reads all pending bytes, because there is no second event for the
	// same bytes.
	t.Run("edge", func(t *testing.T) {
		t.Parallel()
		port := strconv.Itoa(freePort(t))
		s := limited(t, 64, []string{"--listen", port}, program, "accept-edge", port)
		sdpPort, supervisor := s.sdpPort(port), s.supervisor()
		var open []net.Conn
		late := 0 // dials that were given up, some of which may have succeeded
		for full := 0; full < 64 && len(open) < 64; {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			c, err := new(sdp.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+sdpPort)
			cancel()
			if full = descriptors(t, supervisor); err == nil {
				open = append(open, c)
			} else if late++; full > 50 {
				break
			}
		}
		for range 64 { // the remaining descriptors go to connections that send nothing
			if descriptors(t, supervisor) == 64 {
				break
			}
			if c, err := net.Dial("tcp", "127.0.0.1:"+sdpPort); err == nil {
				defer c.Close()
			}
			time.Sleep(10 * time.Millisecond)
		}
		io.WriteString(s.in, "x")
		got, _ := strconv.Atoi(s.line())
		if got < 5 {
			t.Errorf("%d connections were accepted in a shortage", got)
		}
		answered := make(chan bool, len(open))
		for _, c := range open { // the program may accept in any order
			c.SetDeadline(time.Now().Add(patience))
			go func() { answered <- echoOnce(c) == nil }()
		}
		served := 0
		for n := 0; n < len(open) && served+late < got; n++ { // the program answers only those it has accepted
			if <-answered {
				served++
			}
		}
		for _, c := range open {
			c.Close()
		}
		if served+late < got {
			t.Errorf("%d of %d connections were accepted, %d served", got, len(open), served)
		}
		s.in.Close()
		if code := s.wait(); code != 0 {
			t.Errorf("exit %d; %s", code, s.stderr())
		}
	})
}

// echoOnce sends random bytes and expects the same bytes back. Other bytes are a wrongBytes error.
func echoOnce(c net.Conn) error {
	var want, got [32]byte
	rand.Read(want[:])
	if _, err := c.Write(want[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return err
	}
	if want != got {
		return &wrongBytes{want, got}
	}
	return nil
}

// A wrongBytes error reports an echo of another connection's bytes.
type wrongBytes struct{ want, got [32]byte }

func (e *wrongBytes) Error() string { return fmt.Sprintf("sent %x, got %x", e.want, e.got) }

// descriptors returns the number of open descriptors of a process.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	ents, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(ents)
}

// Thousands of connections leave no descriptor open in the supervisor or the program.
func TestRunLeaks(t *testing.T) {
	lengthy(t, "3 s")
	t.Parallel()
	program := buildCFile(t, "shapes")
	n := 1000
	if !testkit.LongRuns() || raceDetector {
		n = 200
	}
	t.Run("accept", func(t *testing.T) {
		t.Parallel()
		port := strconv.Itoa(freePort(t))
		s := startRun(t, []string{"--listen", port}, program, "serve-many", port)
		sdpPort := s.sdpPort(port)
		supervisor := s.supervisor()
		served := childOf(t, supervisor, "PATH=") // the only child once the program listens
		some := func(n int) {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range n / 4 {
						c, err := sdp.Dial("127.0.0.1:"+sdpPort, nil)
						if err != nil {
							t.Error(err)
							return
						}
						c.SetDeadline(time.Now().Add(patience))
						if err := echoOnce(c); err != nil {
							t.Error(err)
						}
						c.Close()
					}
				})
			}
			wg.Wait()
		}
		some(40)
		settled := func() [2]int { return [2]int{steady(t, supervisor), steady(t, served)} }
		before := settled()
		some(n)
		eventually(t, fmt.Sprintf("as many descriptors as before, %v", before), func() bool {
			return descriptors(t, supervisor) <= before[0] && descriptors(t, served) <= before[1]
		})
		if got := count(s.explained(), "accept", "sdp"); got != n+40 {
			t.Errorf("%d connections were carried, want %d", got, n+40)
		}
	})
	t.Run("connect", func(t *testing.T) {
		t.Parallel()
		to := newTarget(t)
		s := startRun(t, []string{"--to", to.rule}, "sh",
			"-c", `"$0" connect "$1" 40 && echo one && read x && "$0" connect "$1" "$2" && echo two && read x`, program, to.port, strconv.Itoa(n))
		if got := s.line(); got != "one" {
			t.Fatalf("said %q", got)
		}
		supervisor := s.supervisor()
		before := steady(t, supervisor)
		io.WriteString(s.in, "x\n")
		if got := s.line(); got != "two" {
			t.Fatalf("said %q", got)
		}
		eventually(t, fmt.Sprintf("as many descriptors as before, %d", before),
			func() bool { return descriptors(t, supervisor) <= before })
		io.WriteString(s.in, "x\n")
		if code, es := s.finish(); code != 0 || count(es, "connect", "sdp") != n+40 {
			t.Errorf("exit %d; %d connections were carried, want %d", code, count(es, "connect", "sdp"), n+40)
		}
	})
}

// steady waits until a process's number of descriptors is constant for 100 ms, and returns the
// number.
func steady(t *testing.T, pid int) (n int) {
	t.Helper()
	same := 0
	eventually(t, "a steady number of descriptors", func() bool {
		now := descriptors(t, pid)
		if now != n {
			n, same = now, 0
		}
		same++
		return same > 50
	})
	return n
}

// Connections succeed with the right bytes while signals interrupt every call of the program and
// every thread of the supervisor.
func TestRunStorm(t *testing.T) {
	lengthy(t, "3 s")
	t.Parallel()
	program := buildCFile(t, "shapes")
	n := 400
	if !testkit.LongRuns() || raceDetector {
		n = 100
	}
	for _, us := range []string{"1000", "200"} {
		for _, restart := range []string{"0", "1"} {
			t.Run(us+"us/restart="+restart, func(t *testing.T) {
				t.Parallel()
				to := newTarget(t)
				s := startRun(t, []string{"--to", to.rule}, afterLine(program, "storm", to.port, strconv.Itoa(n), us, restart)...)
				end := stormThreads(s.supervisor())
				io.WriteString(s.in, "\n")
				code, es := s.finish()
				end()
				if carried := count(es, "connect", "sdp"); code != 0 || carried != n || to.plain.Load() != 0 {
					t.Errorf("exit %d; %d connections were carried, want %d, and %d were plain\n%s",
						code, carried, n, to.plain.Load(), s.stderr())
				}
			})
		}
	}
}

// afterLine returns a command that runs a program after a line of input. A test needs it to find the
// supervisor of a program that ends by itself.
func afterLine(program ...string) []string {
	return append([]string{"sh", "-c", `read x && exec "$0" "$@"`}, program...)
}

// stormThreads sends SIGURG, used by Go's scheduler, to every thread of a process until the
// returned function is called.
func stormThreads(pid int) (end func()) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			ents, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
			for _, e := range ents {
				tid, _ := strconv.Atoi(e.Name())
				unix.Tgkill(pid, tid, unix.SIGURG)
			}
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Microsecond):
			}
		}
	})
	return func() { close(stop); wg.Wait() }
}

// If a connect fails late, the next connect on the socket returns the error, as without viaduct
// run. Afterwards the socket can be connected.
func TestRunRetry(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	program := buildCFile(t, "shapes")
	refused := closedPort(t, "127.0.0.1")
	to := newTarget(t)
	late := slow(t, "127.0.0.1", "", 30*time.Millisecond)
	r, es := runRun(t, []string{"--to", "127.0.0.1:" + refused + "=:" + portOf(late.Addr()),
		"--to", to.rule, "--bound", "5ms"},
		program, "retry", refused, to.port)
	want := "connect: EINPROGRESS, events 1c, again ECONNREFUSED, and again ok\n" +
		"connect: EINPROGRESS, events 1c, SO_ERROR ECONNREFUSED, again ECONNABORTED, and again ok\n"
	if r.code != 0 || r.stdout != want {
		t.Errorf("exit %d\n%s%swant as the kernel does:\n%s", r.code, r.stdout, r.stderr, want)
	}
	if count(es, "connect", "sdp") != 2 || to.plain.Load() != 0 {
		t.Errorf("not carried at last: %+v", es)
	}
}
