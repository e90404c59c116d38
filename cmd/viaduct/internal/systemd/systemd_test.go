package systemd

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TestFits: a socket fits a listener with the same address, or with an address covered by the
// socket's address. A socket also fits a listener without a host.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		at, host string
		port     uint16
		want     bool
	}{
		{"127.0.0.1:80", "127.0.0.1", 80, true},
		{"127.0.0.1:80", "", 80, true},
		{"[::]:80", "192.0.2.1", 80, true},
		{"[::]:80", "localhost", 80, true},
		{"127.0.0.1:80", "127.0.0.2", 80, false},
		{"127.0.0.1:80", "127.0.0.1", 81, false},
		{"127.0.0.1:80", "127.0.0.1", 0, false},
		{"[::1]:80", "::1", 80, true},
		{"127.0.0.1:80", "::ffff:127.0.0.1", 80, true},
	} {
		if got := fits(netip.MustParseAddrPort(c.at), c.host, c.port); got != c.want {
			t.Errorf("%s for %s port %d: %v", c.at, c.host, c.port, got)
		}
	}
}

// TestInherited: variables for another process are ignored, and wrong variables are errors.
func TestInherited(t *testing.T) {
	t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()+1))
	t.Setenv("LISTEN_FDS", "1")
	if s, err := Inherited(); err != nil || len(s.Left()) != 0 || os.Getenv("LISTEN_FDS") != "1" {
		t.Error(s, err, os.Getenv("LISTEN_FDS"))
	}
	t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("LISTEN_FDS", "many")
	if _, err := Inherited(); err == nil {
		t.Error("LISTEN_FDS=many is taken")
	}
	if os.Getenv("LISTEN_PID") != "" {
		t.Error("LISTEN_PID is still there for children")
	}
}

// TestNotify: Notify sends one datagram with all lines, and nothing without a manager.
func TestNotify(t *testing.T) {
	dir, err := os.MkdirTemp("", "v")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := &net.UnixAddr{Name: filepath.Join(dir, "n"), Net: "unixgram"}
	c, err := net.ListenUnixgram("unixgram", at)
	if err != nil {
		t.Skipf("SKIPPED: no unix datagrams: %v", err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", at.Name)
	if err := Notify("READY=1", "STATUS=well"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(b); err != nil || string(b[:n]) != "READY=1\nSTATUS=well" {
		t.Errorf("%q, %v", b[:n], err)
	}
	t.Setenv("NOTIFY_SOCKET", "host:1")
	if err := Notify("READY=1"); err == nil {
		t.Error("a manager at host:1")
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify("READY=1"); err != nil {
		t.Error(err)
	}
}

// TestWatchdog reads the interval.
func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		bad       bool
	}{{"", "", 0, false}, {"30000000", "", 30 * time.Second, false},
		{"1000", strconv.Itoa(os.Getpid()), time.Millisecond, false}, {"1000", "1", 0, false}, {"soon", "", 0, true},
		{"-1", "", 0, true}, {"9223372036854775807", "", 0, true}} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if d, err := WatchdogInterval(); d != c.want || (err != nil) != c.bad {
			t.Errorf("%s for %s: %v, %v", c.usec, c.pid, d, err)
		}
	}
}
