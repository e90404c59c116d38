package vitcp

import (
	"bytes"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/vi"
)

// The sockets of both sides have these options: no Nagle, keepalive of 15 s unless configured, and
// the configured congestion control and user timeout. [V-35] [V-40]
func TestSocketOptions(t *testing.T) {
	get := func(nc net.Conn, level, opt int) (v int) {
		must(t, control(nc, func(fd int) (err error) {
			v, err = unix.GetsockoptInt(fd, level, opt)
			return err
		}))
		return v
	}
	for _, c := range []struct {
		cfg        Config
		keep, idle int
		user       int
	}{
		{Config{}, 1, 15, 0},
		{Config{KeepAlive: 7 * time.Second, UserTimeout: 3 * time.Second, Congestion: "reno"}, 1, 7, 3000},
		{Config{KeepAlive: -1, Congestion: "no such algorithm"}, 0, 0, 0},
	} {
		p := connectPair(t, c.cfg, reliableAll)
		for _, v := range []*vi.VI{p.a, p.b} {
			nc := v.Link().(*link).c.NetConn()
			if get(nc, unix.IPPROTO_TCP, unix.TCP_NODELAY) != 1 {
				t.Error("Nagle is on")
			}
			if got := get(nc, unix.SOL_SOCKET, unix.SO_KEEPALIVE); got != c.keep {
				t.Errorf("keepalive %d, want %d", got, c.keep)
			}
			if got := get(nc, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE); c.idle != 0 && got != c.idle {
				t.Errorf("keepalive after %d s, want %d", got, c.idle)
			}
			if got := get(nc, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); got != c.user {
				t.Errorf("user timeout %d, want %d", got, c.user)
			}
		}
	}
}

// Connections use TCP time stamps, which guard against old segments, unless time stamps are turned
// off in the system. [VIT-2.2.2.2.4-1]
func TestTimestamps(t *testing.T) {
	const on = 1 // TCPI_OPT_TIMESTAMPS
	if b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_timestamps"); err == nil && bytes.HasPrefix(b, []byte("0")) {
		t.Skip("the system has TCP's time stamps turned off")
	}
	p := connectPair(t, Config{}, reliableAll)
	for _, v := range []*vi.VI{p.a, p.b} {
		must(t, control(v.Link().(*link).c.NetConn(), func(fd int) error {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil && info.Options&on == 0 {
				t.Errorf("options %#x without time stamps", info.Options)
			}
			return err
		}))
	}
}

// The system chooses a caller's port when the connection is made, not when its address is bound.
func TestLatePort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	late := false
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, Control: func(network, address string, raw syscall.RawConn) error {
		if err := latePort(network, address, raw); err != nil {
			return err
		}
		return raw.Control(func(fd uintptr) {
			v, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT)
			late = err == nil && v == 1
		})
	}}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !late {
		t.Error("the port is chosen at bind")
	}
	if a := c.LocalAddr().(*net.TCPAddr); !a.IP.IsLoopback() || a.Port == 0 {
		t.Errorf("comes from %v", a)
	}
}
