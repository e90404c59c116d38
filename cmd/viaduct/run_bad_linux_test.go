//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/sdp"
)

// dialFrom connects to the address to over SDP, from the address from of this host.
func dialFrom(t *testing.T, from, to string) *sdp.Conn {
	t.Helper()
	d := sdp.Dialer{}
	d.Net.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c.(*sdp.Conn)
}

// A process may accept a carried connection with a call unseen by the supervisor, here on a
// listener shared with the program. The process would take the remote peer for a local peer, so the
// connection must carry no byte in either direction.
func TestRunUnseen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file := filepath.Join(t.TempDir(), "explain")
	c := command(t.Context(), "run", "--json", "--explain="+file, "--portmap-listen", "off",
		"--listen", "any", "--", "sleep", "600")
	c.ExtraFiles = []*os.File{f}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Signal(syscall.SIGTERM); c.Wait() }()
	s := &served{proc: &proc{t: t}, file: file}
	port := s.sdpPort("")

	for _, speak := range []string{"banner\r\n", ""} { // the process sends this, or only closes
		far := dialFrom(t, "127.0.0.1", "127.0.0.1:"+port)
		if _, err := far.Write([]byte("secret")); err != nil {
			t.Fatal(err)
		}
		near, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if speak == "" {
			near.(*net.TCPConn).CloseWrite()
		} else {
			io.WriteString(near, speak)
		}
		near.SetDeadline(time.Now().Add(patience))
		if b, err := io.ReadAll(near); len(b) != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the unseen process got %q, %v", b, err)
		}
		near.Close()
		if b, err := io.ReadAll(far); len(b) != 0 || err == nil {
			t.Errorf("the peer got %q, %v, want a reset", b, err)
		}
	}
	eventually(t, "two refusals", func() bool { return count(s.explained(), "accept", "refused") == 2 })
}

// An inherited listener is carried too. The listener has the descriptor number the program expects,
// and LISTEN_PID names the program.
func TestRunInherited(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	file := filepath.Join(t.TempDir(), "explain")
	// The shell sets LISTEN_PID and becomes viaduct run, as a service manager does.
	script := `export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"`
	args := []string{"-c", script, "sh", os.Args[0], "run", "--json", "--explain=" + file, "--portmap-listen", "off", "--listen", "any", "--", python, "-c", `
import os, socket
assert int(os.environ["LISTEN_PID"]) == os.getpid()
c, peer = socket.socket(fileno=3).accept()
c.sendall(("%s %d %s %d" % (peer + c.getpeername())).encode())
`}
	c := exec.CommandContext(t.Context(), "sh", args...)
	c.Env = append(os.Environ(), asCommand+"=1")
	c.ExtraFiles = []*os.File{f}
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	s := &served{proc: &proc{t: t}, file: file}
	far := dialFrom(t, "127.0.0.3", "127.0.0.1:"+s.sdpPort(""))
	b, err := io.ReadAll(far)
	if me := strings.Replace(far.LocalAddr().String(), ":", " ", 1); err != nil || string(b) != me+" "+me {
		t.Errorf("the program saw %q, want %q twice; %v", b, me, err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs.String())
	}
}

// remoteAddr returns an address of this host other than loopback.
func remoteAddr(t *testing.T) string {
	t.Helper()
	as, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr().String()
		}
	}
	t.Skip("SKIPPED: this host has no address but loopback")
	return ""
}

// redis admits peers on other hosts only with a password. It treats carried connections the same
// way.
func TestRunRedisProtected(t *testing.T) {
	t.Parallel()
	redis := need(t, "redis-server", "redis-server")
	host, port := remoteAddr(t), strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port}, redis, "--port", port, "--bind", "0.0.0.0",
		"--save", "", "--dir", t.TempDir())
	sdpPort := s.sdpPort(port)
	ask := func(from, question string) string {
		c := dialFrom(t, from, from+":"+sdpPort)
		io.WriteString(c, question)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatalf("from %s: %v", from, err)
		}
		return line
	}
	// redis closes a denied connection at once. A question would be left unread and make the close a
	// reset, which may overtake the answer.
	if got := ask(host, ""); !strings.HasPrefix(got, "-DENIED") {
		t.Errorf("a peer at %s got %q, want -DENIED", host, got)
	}
	if got := ask("127.0.0.1", "PING\r\n"); got != "+PONG\r\n" {
		t.Errorf("a local peer got %q", got)
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("redis: exit %d", code)
	}
}

// postgres trusts only 127.0.0.1, and refuses a carried peer at another address.
func TestRunPostgresTrust(t *testing.T) {
	t.Parallel()
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(bins) == 0 {
		t.Skip("SKIPPED: postgres is not installed (apt-get install postgresql)")
	}
	bin := bins[len(bins)-1]
	data, err := os.MkdirTemp("", "viaduct-pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	var as []string // postgres does not run as root
	if os.Getuid() == 0 {
		need(t, "setpriv", "util-linux")
		as = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
		if err := os.Chown(data, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	initdb := append(as, filepath.Join(bin, "initdb"), "-D", data, "-U", "test", "-A", "trust", "--no-sync")
	if b, err := exec.Command(initdb[0], initdb[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, b)
	}
	hba := "host all all 127.0.0.1/32 trust\n"
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(hba), 0o644); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port},
		append(as, filepath.Join(bin, "postgres"), "-D", data, "-p", port, "-k", data, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")...)
	s.waitStderr("ready to accept")
	sdpPort := s.sdpPort(port)
	ask := func(from string) string {
		c := dialFrom(t, from, "127.0.0.1:"+sdpPort)
		defer c.Close()
		m := append([]byte{0, 0, 0, 0, 0, 3, 0, 0}, "user\x00test\x00database\x00postgres\x00\x00"...)
		binary.BigEndian.PutUint32(m, uint32(len(m)))
		c.Write(m)
		b := make([]byte, 4096)
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("from %s: %v\n%s", from, err, s.stderr())
		}
		return string(b[:n])
	}
	if got := ask("127.0.0.2"); !strings.HasPrefix(got, "E") || !strings.Contains(got, `host "127.0.0.2"`) {
		t.Errorf("a peer at 127.0.0.2 got %q, want it refused by its address", got)
	}
	if got := ask("127.0.0.1"); !strings.HasPrefix(got, "R") {
		t.Errorf("a peer at 127.0.0.1 got %q", got)
	}
	// SIGINT would be quicker, but is ignored where the tests run in the background.
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("postgres: exit %d", code)
	}
}

// deathPy connects, accepts and queries names continuously. After a line of input, every call must
// succeed, and the program exits with 23.
const deathPy = `
import errno, os, socket, sys, threading
far = ("127.0.0.1", int(sys.argv[1]))
l = socket.create_server(("127.0.0.1", 0))
here = l.getsockname()
def fail(e):
	sys.stderr.write("failed: %r\n" % e)
	os._exit(9)
def serve():
	while True:
		try:
			c, _ = l.accept()
			c.getpeername()
			c.sendall(c.recv(4))
			c.close()
		except OSError as e:
			# A supervisor that is killed in the very moment of giving a socket leaves the
			# accept call answered with 0, which is no socket.
			if e.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.ENOTSOCK): fail(e)
def once(strict, at):
	try:
		with socket.create_connection(at, timeout=60) as c:
			c.getsockname()
			c.sendall(b"ping")
			got = c.recv(4)
			if strict and got != b"ping": fail(got)
	except OSError as e:
		if strict or e.errno in (errno.ENOSYS, errno.EINTR) or isinstance(e, TimeoutError): fail(e)
stop = False
def busy(at):
	while not stop: once(False, at)
threading.Thread(target=serve, daemon=True).start()
ts = [threading.Thread(target=busy, args=(a,)) for a in (here, here, far)]
for t in ts: t.start()
print("ready", flush=True)
sys.stdin.readline()
stop = True
for t in ts: t.join()
for _ in range(20): once(True, here)
os._exit(23)
`

// supervisor returns the process serving the program's calls.
func (s *served) supervisor() int { s.t.Helper(); return supervisorOf(s.t, s.cmd.Process.Pid) }

// supervisorOf returns the supervisor started by the process front, the command itself.
func supervisorOf(t *testing.T, front int) int {
	t.Helper()
	return childOf(t, front, "VIADUCT_RUN_SUPERVISOR=")
}

// childOf returns a child of a process with the given variable in the child's environment. The
// variable excludes short-lived children of Go's runtime, used to test features of the kernel.
func childOf(t *testing.T, parent int, variable string) (child int) {
	t.Helper()
	eventually(t, fmt.Sprintf("a child of process %d", parent), func() bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
		for _, f := range files {
			b, _ := os.ReadFile(f)
			for pid := range strings.FieldsSeq(string(b)) {
				if env, _ := os.ReadFile("/proc/" + pid + "/environ"); bytes.Contains(env, []byte(variable)) {
					child, _ = strconv.Atoi(pid)
				}
			}
		}
		return child != 0
	})
	return child
}

// If the supervisor is killed at any point, the program goes on with plain TCP, nothing hangs, and
// the command still returns the program's exit code.
func TestRunSupervisorKilled(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	_, urls := start(t, 1, "echo", "--listen", "sdp://127.0.0.1:0")
	echo := strings.TrimPrefix(urls[0], "sdp://")
	_, echoPort, _ := strings.Cut(echo, ":")
	n := 20
	if !testkit.LongRuns() || raceDetector {
		n = 4
	}
	for i := range n {
		s := startRun(t, []string{"--listen", "any", "--to", echo}, python, "-c", deathPy, echoPort)
		if s.line() != "ready" {
			t.Fatal("the program does not start")
		}
		eventually(t, "carried connection", func() bool { return count(s.explained(), "connect", "sdp") > 0 })
		time.Sleep(time.Duration(i) * 700 * time.Microsecond) // a different moment each time
		syscall.Kill(s.supervisor(), syscall.SIGKILL)
		s.waitStderr("the supervisor died")
		io.WriteString(s.in, "go on\n")
		if code := s.wait(); code != 23 {
			t.Fatalf("point %d: exit %d, want the program's 23\n%s", i, code, s.stderr())
		}
	}
}
