package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A manager acts as systemd towards a service: the manager passes sockets to the service and
// receives status messages.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "viaduct") // short, because unix addresses are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &manager{t, c}
}

// await waits until the service has sent a status message with the line.
func (m *manager) await(line string) {
	m.t.Helper()
	b := make([]byte, 4096)
	m.conn.SetReadDeadline(time.Now().Add(patience))
	for {
		n, err := m.conn.Read(b)
		if err != nil {
			m.t.Fatalf("never told %s: %v", line, err)
		}
		for l := range strings.SplitSeq(string(b[:n]), "\n") {
			if l == line {
				return
			}
		}
	}
}

// service starts a command with sockets like systemd. systemd sets LISTEN_PID between fork and
// exec. Here, a shell sets LISTEN_PID to the shell's own number and then becomes the command.
func (m *manager) service(sockets []*os.File, args ...string) *exec.Cmd {
	m.t.Helper()
	c := command(m.t.Context(), args...)
	c.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0]}, args...)
	sh, err := exec.LookPath("sh")
	if err != nil {
		m.t.Skip("SKIPPED: there is no shell")
	}
	c.Path = sh
	c.ExtraFiles = sockets
	c.Env = append(c.Env, "NOTIFY_SOCKET="+m.conn.LocalAddr().String(), "WATCHDOG_USEC=300000",
		"LISTEN_FDS="+string(rune('0'+len(sockets))))
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// tcpSocket returns a listening socket as a file, and the socket's address.
func tcpSocket(t *testing.T) (*os.File, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, l.Addr().String()
}

// TestSocketActivation: a client connected before the start of the service is served on the socket
// opened by the service manager, over every transport. The manager receives READY, WATCHDOG and
// STOPPING. SIGHUP, which ExecReload of the units sends, does not end the service.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"vitcp", "iwarp", "sdp", "fcvi", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			f, at := tcpSocket(t)
			u := scheme + "://" + at
			if scheme == "vitcp" || scheme == "fcvi" {
				u += "/x"
			}
			first := make(chan result, 1)
			// The kernel queues the connection until the service runs. With --retry, the service may
			// take longer to start than the set-up of a connection may take.
			go func() { first <- run(t, "ping", u, "-c", "3", "-i", "1ms", "--retry", "5") }()
			m := newManager(t)
			c := m.service([]*os.File{f}, "echo", "--listen", u)
			m.await("READY=1")
			c.Process.Signal(syscall.SIGHUP) // the service has no file to read again, and goes on
			if r := <-first; r.code != 0 {
				t.Errorf("ping: exit %d: %s", r.code, r.stderr)
			}
			m.await("WATCHDOG=1")
			m.await("WATCHDOG=1")
			c.Process.Signal(syscall.SIGTERM)
			m.await("STOPPING=1")
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
			// The service used a copy of the manager's socket, and the manager's is still open.
			d, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatalf("the socket was not the manager's: %v", err)
			}
			d.Close()
		})
	}
}

// TestSocketActivationUDP: the Port Mapper uses a UDP socket of the manager.
func TestSocketActivationUDP(t *testing.T) {
	t.Parallel()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	at := c.LocalAddr().String()
	c.Close()
	defer f.Close()
	m := newManager(t)
	m.service([]*os.File{f}, "portmap", "serve", "--listen", at, "--map", "127.0.0.1:80=127.0.0.1:8080")
	m.await("READY=1")
	if r := good(t, "portmap", "query", "127.0.0.1:80", "--server", at); !strings.Contains(r.stdout, "127.0.0.1:8080") {
		t.Error(r.stdout)
	}
}

// TestServices: according to systemd-analyze, every shipped unit has few privileges and contains no
// unknown setting.
func TestServices(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: there is no systemd-analyze")
	}
	units, _ := filepath.Glob("../../packaging/systemd/*.service")
	if len(units) < 4 {
		t.Fatalf("units: %q", units)
	}
	for _, u := range units {
		out, err := exec.Command(analyze, "--offline=true", "--threshold=20", "--no-pager", "security", u).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", u, err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Log(lines[len(lines)-1])
	}
}
