//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
	"viaduct/sdp"
)

// buildCFile builds a C program of testdata/run.
func buildCFile(t *testing.T, name string) string {
	t.Helper()
	cc := need(t, "cc", "gcc libc6-dev")
	out := filepath.Join(t.TempDir(), name)
	if b, err := exec.Command(cc, "-O1", "-Wall", "-pthread", "-o", out, filepath.Join("testdata", "run", name+".c")).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, b)
	}
	return out
}

// listenOn listens on a loopback address at a free port until the end of the test. It skips the
// test if the address is ::1 and the host has no IPv6.
func listenOn(t *testing.T, host string) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // MPTCP sockets do not take all options
	testkit.NeedHost(t, host)
	l, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// closedPort returns a port of loopback without a listener: a bound socket reserves the port during
// the test.
func closedPort(t *testing.T, host string) string {
	t.Helper()
	testkit.NeedHost(t, host)
	family, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if host == "::1" {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, at); err != nil {
		t.Fatal(err)
	}
	at, err = unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := at.(*unix.SockaddrInet6); ok {
		return strconv.Itoa(a.Port)
	}
	return strconv.Itoa(at.(*unix.SockaddrInet4).Port)
}

func portOf(a net.Addr) string { _, p, _ := net.SplitHostPort(a.String()); return p }

// serveEcho echoes the bytes of every connection of a listener.
func serveEcho(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// echoSDP starts an echo server over SDP and returns the server's address.
func echoSDP(t *testing.T, host string) string {
	t.Helper()
	testkit.NeedHost(t, host)
	l, err := sdp.Listen(net.JoinHostPort(host, "0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go serveEcho(l)
	return l.Addr().String()
}

// slow accepts connections. After a delay, it forwards each connection to the address to, or closes
// the connection if to is empty.
func slow(t *testing.T, host, to string, delay time.Duration) net.Listener {
	l := listenOn(t, host)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				select {
				case <-ctx.Done():
					return
				case <-time.After(delay):
				}
				far, err := net.Dial("tcp", to)
				if to == "" || err != nil {
					return
				}
				defer far.Close()
				stop := context.AfterFunc(ctx, func() { c.Close(); far.Close() })
				defer stop()
				var both sync.WaitGroup
				both.Go(func() { io.Copy(far, c); far.(*net.TCPConn).CloseWrite() })
				io.Copy(c, far)
				c.(*net.TCPConn).CloseWrite()
				both.Wait()
			})
		}
	})
	return l
}

// deaf returns a listener that answers no SYN, because its queue is full, so that a connect times
// out. A socket filter would need privileges on some kernels.
func deaf(t *testing.T, host string) net.Listener {
	t.Helper()
	l := listenOn(t, host)
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }) // room for one connection
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	eventually(t, "a full queue", func() (full bool) {
		raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			full = err == nil && info.Unacked == 1 // of a listener, the length of its queue
		})
		return full
	})
	return l
}

// compareTables compares two outputs line by line.
func compareTables(t *testing.T, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Errorf("got  %q\nwant %q, as without viaduct run", a, b)
		}
	}
}

// plain runs a program without viaduct run, and returns the output. A failure of the program fails
// the test.
func plain(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, b)
	}
	return string(b)
}

// connect, poll, epoll, select and related calls return the same as without viaduct run, however
// long the dial takes.
func TestRunConnect(t *testing.T) {
	t.Parallel()
	program := buildCFile(t, "connect")
	for _, tc := range []struct {
		host  string
		delay time.Duration
		bound string
	}{
		{"127.0.0.1", 0, "100ms"}, {"127.0.0.1", 0, "0"}, {"127.0.0.1", 30 * time.Millisecond, "10ms"}, {"127.0.0.1", 30 * time.Millisecond, "0"},
		{"127.0.0.1", 400 * time.Millisecond, "10ms"}, {"::1", 30 * time.Millisecond, "10ms"}, {"::1", 0, "100ms"},
	} {
		t.Run(fmt.Sprintf("%s/delay=%v/bound=%s", tc.host, tc.delay, tc.bound), func(t *testing.T) {
			t.Parallel()
			echo, never := listenOn(t, tc.host), deaf(t, tc.host)
			go serveEcho(echo)
			refused := closedPort(t, tc.host)
			farEcho, farNever := slow(t, tc.host, echoSDP(t, tc.host), tc.delay), deaf(t, tc.host)
			var farRefused string
			if tc.delay == 0 {
				farRefused = closedPort(t, tc.host)
			} else {
				farRefused = portOf(slow(t, tc.host, "", tc.delay).Addr())
			}
			family := "4"
			if tc.host == "::1" {
				family = "6"
			}
			args := []string{portOf(echo.Addr()), refused, portOf(never.Addr()), family}
			want := plain(t, program, args...)
			rule := func(from, to string) string { return net.JoinHostPort(tc.host, from) + "=:" + to }
			r, es := runRun(t, []string{"--bound", tc.bound,
				"--to", rule(portOf(echo.Addr()), portOf(farEcho.Addr())), "--to", rule(refused, farRefused), "--to",
				rule(portOf(never.Addr()), portOf(farNever.Addr()))},
				append([]string{program}, args...)...)
			if r.code != 0 {
				t.Errorf("exit %d\n%s", r.code, r.stderr)
			}
			compareTables(t, r.stdout, want)
			if n := count(es, "connect", "sdp"); n < 14 {
				t.Errorf("%d connections were carried", n)
			}
		})
	}
}

// TestRunHeld: many connects wait at the same time for a slow dial, with both address families. All
// connects succeed, and the connections carry the right bytes. A connect abandoned meanwhile by the
// program leaves nothing open.
func TestRunHeld(t *testing.T) {
	t.Parallel()
	program := buildCFile(t, "shapes")
	n := 1000
	if !testkit.LongRuns() || raceDetector {
		n = 200
	}
	for host, family := range map[string]string{"127.0.0.1": "4", "::1": "6"} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			refused := closedPort(t, host) // without SDP, nothing listens there
			far := slow(t, host, echoSDP(t, host), 30*time.Millisecond)
			s := startRun(t, []string{"--require", "--bound", "0",
				"--to", net.JoinHostPort(host, refused) + "=:" + portOf(far.Addr())},
				program, "held", refused, strconv.Itoa(n), family)
			used := func() int {
				t.Helper()
				n, err := strconv.Atoi(s.line())
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			all, supervisor := used(), s.supervisor()
			before := steady(t, supervisor)
			io.WriteString(s.in, "x")
			some := used()
			if some < n*8/10 {
				t.Errorf("%d of %d opens were used", some, n)
			}
			all += some
			eventually(t, fmt.Sprintf("as many descriptors as before, %d", before),
				func() bool { return descriptors(t, supervisor) <= before })
			s.in.Close()
			code, es := s.finish()
			sdp, given := count(es, "connect", "sdp"), count(es, "connect", "refused")
			// A connect abandoned by the program may already be connected.
			if code != 0 || sdp < all || sdp+given != n+50 {
				t.Errorf("exit %d; %d opens were carried, %d given up, want %d and %d together\n%s",
					code, sdp, given, all, n+50, s.stderr())
			}
		})
	}
}

// If a program dies during a dial, the supervisor does not wait for the dial.
func TestRunDialDies(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	never := deaf(t, "127.0.0.1")
	c := command(t.Context(), "run", "--to", never.Addr().String(), "--", python, "-c", `
import socket, sys
s = socket.socket()
s.setblocking(False)
print(s.connect_ex(("127.0.0.1", int(sys.argv[1]))), flush=True)
sys.stdin.readline()
`, portOf(never.Addr()))
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, _ := out.Read(b)
	if got := strings.TrimSpace(string(b[:n])); got != strconv.Itoa(int(syscall.EINPROGRESS)) {
		t.Errorf("connect said %q", got)
	}
	supervisor := supervisorOf(t, c.Process.Pid)
	in.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	eventually(t, "end of the supervisor", func() bool { return syscall.Kill(supervisor, 0) != nil })
}
