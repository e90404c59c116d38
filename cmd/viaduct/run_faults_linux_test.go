//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asNames makes the test binary a program that connects to an address and prints both addresses of
// the socket.
const asNames = "VIADUCT_TEST_NAMES"

// A rule may map an IPv4 address to an IPv6 address. The program's socket still shows IPv4.
func TestRunOtherFamily(t *testing.T) {
	t.Parallel()
	_, sdpPort, err := net.SplitHostPort(echoSDP(t, "::1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, bound := range []string{"0", "10s"} {
		port := strconv.Itoa(freePort(t))
		r, es := runRun(t, []string{"--to", "127.0.0.1:" + port + "=[::1]:" + sdpPort, "--bound", bound},
			"env", asNames+"=127.0.0.1:"+port, os.Args[0])
		local, remote, _ := strings.Cut(strings.TrimSpace(r.stdout), " ")
		if a, err := netip.ParseAddrPort(local); r.code != 0 || r.stderr != "" ||
			remote != "127.0.0.1:"+port || err != nil || a.Addr().String() != "127.0.0.1" || a.Port() == 0 {
			t.Errorf("bound %s: exit %d; %q\n%s", bound, r.code, r.stdout, r.stderr)
		}
		if count(es, "connect", "sdp") != 1 {
			t.Errorf("bound %s: not carried: %+v", bound, es)
		}
	}
}

// rendezvous returns the unix address where a supervisor accepts pair requests for a loopback port.
func rendezvous(port string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("@viaduct-run/1/%d/127.0.0.1:%s", os.Geteuid(), port)}
}

// askPair sends a pair request with descriptors, and returns the reason of a refusal, or "".
func askPair(t *testing.T, port, from string, fds ...int) (why string) {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, rendezvous(port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, _, err := c.WriteMsgUnix(fmt.Appendf(nil, `{"to":"127.0.0.1:%s","from":%q}`, port, from), unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1024)
	n, err := c.Read(b)
	if err != nil {
		t.Fatalf("from %q: no answer: %v", from, err)
	}
	var a struct{ Why string }
	if err := json.Unmarshal(b[:n], &a); err != nil {
		t.Fatalf("from %q: %v: %s", from, err, b[:n])
	}
	return a.Why
}

// Invalid pair requests are refused, and leave no descriptors in the supervisor.
func TestRunPairRequests(t *testing.T) {
	lengthy(t, "6 s")
	t.Parallel()
	port := strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--same-host"}, buildCFile(t, "shapes"), "serve-many", port)
	defer func() {
		if code := s.stop(syscall.SIGTERM); code != 128+15 {
			t.Errorf("exit %d; %s", code, s.stderr())
		}
	}()
	eventually(t, "the listener", func() bool { return count(s.explained(), "listen", "pair") == 1 })
	supervisor := s.supervisor()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	for _, from := range []string{"", "[::1]:0", "[::ffff:127.0.0.1]:0"} {
		if why := askPair(t, port, from, ends[1]); why == "" {
			t.Errorf("from %q: granted", from)
		}
	}
	before := steady(t, supervisor)
	for range 20 {
		if why := askPair(t, port, "127.0.0.1:0", ends[1], ends[1]); why == "" {
			t.Error("two descriptors: granted")
		}
	}
	eventually(t, fmt.Sprintf("as many descriptors as before, %d", before),
		func() bool { return descriptors(t, supervisor) <= before })
	if why := askPair(t, port, "127.0.0.1:0", ends[1]); why != "" {
		t.Errorf("a request that is right: %s", why)
	}
}

// If a supervisor gives an invalid answer to a pair request, the connection is plain TCP.
func TestRunPairAnswers(t *testing.T) {
	lengthy(t, "6 s")
	t.Parallel()
	for _, answer := range []string{`{}`, `{"from":"[::1]:5"}`, `{`} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := portOf(l.Addr())
		meet, err := net.ListenUnix("unixpacket", rendezvous(port))
		if err != nil {
			t.Fatal(err)
		}
		defer meet.Close()
		go func() {
			c, err := meet.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 1024))
			io.WriteString(c, answer)
			c.Close()
		}()
		r, es := runRun(t, []string{"--same-host"}, "env", asNames+"=127.0.0.1:"+port, os.Args[0])
		if local, remote, _ := strings.Cut(strings.TrimSpace(r.stdout), " "); r.code != 0 ||
			r.stderr != "" || remote != "127.0.0.1:"+port || !strings.HasPrefix(local, "127.0.0.1:") {
			t.Errorf("answer %s: exit %d; %q\n%s", answer, r.code, r.stdout, r.stderr)
		}
		if count(es, "connect", "tcp") != 1 {
			t.Errorf("answer %s: not plain: %+v", answer, es)
		}
	}
}

// If the supervisor has no free descriptor, an accept call waits for a free descriptor. The
// connection in the listener's queue is not lost.
func TestRunShortAccept(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	port := strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port}, buildCFile(t, "shapes"), "accept-told", port)
	sdpPort, supervisor := s.sdpPort(port), s.supervisor()
	c := dialFrom(t, "127.0.0.6", "127.0.0.1:"+sdpPort)
	eventually(t, "the connection in the program's queue", func() bool { return queued(t, port) == 1 })
	// Until the supervisor watches the connection, it has two descriptors of its end.
	eventually(t, "no reserved descriptor", func() bool { return !hasTwice(t, supervisor) })
	steady(t, supervisor)
	end := short(t, supervisor)
	io.WriteString(s.in, "x")
	time.Sleep(300 * time.Millisecond) // by now, the call has arrived
	end()
	if mark, err := markedOn(c); err != nil || mark != 3 {
		t.Errorf("mark %d, %v", mark, err)
	}
	s.in.Close()
	if code, es := s.finish(); code != 0 || count(es, "accept", "sdp") != 1 {
		t.Errorf("exit %d, %+v\n%s", code, es, s.stderr())
	}
}

// hasTwice reports whether a process has two descriptors of the same socket.
func hasTwice(t *testing.T, pid int) bool {
	t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, fd := range all {
		to, err := os.Readlink(fd) // an error means that it was closed meanwhile
		if err == nil && strings.HasPrefix(to, "socket:") && seen[to] {
			return true
		}
		seen[to] = true
	}
	return false
}

// queued returns the number of connections in the queues of the listeners at a port of IPv4.
func queued(t *testing.T, port string) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	want, _ := strconv.Atoi(port)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // number, local and remote address, state, queues of sent and received data
		if len(f) < 5 || f[3] != "0A" || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", want)) {
			continue
		}
		_, received, _ := strings.Cut(f[4], ":")
		waiting, _ := strconv.ParseInt(received, 16, 64)
		n += waiting
	}
	return n
}

// Without free descriptors, a supervisor does not claim that the socket of a pair has no TCP
// options. The supervisor accepts pair requests again when descriptors are free.
func TestRunShortPairs(t *testing.T) {
	lengthy(t, "9 s")
	t.Parallel()
	port, program := strconv.Itoa(freePort(t)), buildCFile(t, "shapes")
	s := startRun(t, []string{"--same-host"}, program, "serve-many", port)
	eventually(t, "the listener", func() bool { return count(s.explained(), "listen", "pair") == 1 })
	end := short(t, s.supervisor())
	m, err := net.DialUnix("unixpacket", nil, rendezvous(port))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	time.Sleep(100 * time.Millisecond) // the supervisor has noticed the request by now
	end()

	c := startRun(t, []string{"--same-host"}, program, "option-told", port)
	if got := c.line(); got != "connected" || count(c.explained(), "connect", "pair") != 1 {
		t.Fatalf("said %q; %+v\n%s", got, c.explained(), c.stderr())
	}
	set := func(want string) {
		t.Helper()
		io.WriteString(c.in, "x")
		if got := c.line(); got != want {
			t.Errorf("TCP_NODELAY: %s, want %s", got, want)
		}
	}
	set("ok")
	end = short(t, c.supervisor())
	set("ENOBUFS")
	end()
	set("ok")
	c.in.Close()
	if code, _ := c.finish(); code != 0 {
		t.Errorf("exit %d; %s", code, c.stderr())
	}
	if code := s.stop(syscall.SIGTERM); code != 128+15 {
		t.Errorf("exit %d; %s", code, s.stderr())
	}
}

// short prevents a process from opening further descriptors, until end is called.
func short(t *testing.T, pid int) (end func()) {
	t.Helper()
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 1024}, nil); err != nil {
		t.Skipf("SKIPPED: the limits of another process can't be changed: %v", err)
	}
	return func() {
		t.Helper()
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024}, nil); err != nil {
			t.Fatal(err)
		}
	}
}
