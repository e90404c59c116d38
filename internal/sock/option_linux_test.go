package sock

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestOwnedOptions: both ends of a connection have the options that package net sets on its own
// connections, and the options of the listener's Tuning. [I-28]
func TestOwnedOptions(t *testing.T) {
	tu := Tuning{Congestion: "reno"}
	l := ownListener(t, "127.0.0.1:0", tu)
	a, b := dialAccept(t, l)
	for _, c := range []net.Conn{a, b} {
		if err := Tune(c, tu); err != nil {
			t.Fatal(err)
		}
	}
	ref, other := testkit.TCPPair(t)
	defer ref.Close()
	defer other.Close()
	if err := Tune(ref, tu); err != nil {
		t.Fatal(err)
	}
	get := func(c net.Conn, level, opt int) (v int) {
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) { v, err = unix.GetsockoptInt(int(fd), level, opt) })
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	options := []struct {
		name       string
		level, opt int
	}{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY}, {"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {"TCP_CONGESTION", unix.IPPROTO_TCP, unix.TCP_CONGESTION},
	}
	check := func(c net.Conn, side string) {
		if get(c, unix.IPPROTO_TCP, unix.TCP_NODELAY) == 0 {
			t.Errorf("TCP_NODELAY is off where a connection %s", side)
		}
		for _, o := range options {
			if got, want := get(c, o.level, o.opt), get(ref, o.level, o.opt); got != want {
				t.Errorf("%s where a connection %s is %d, want %d", o.name, side, got, want)
			}
		}
	}
	check(a, "is dialled")
	check(b, "is accepted")
	tu.KeepAlive = 7 * time.Second
	for _, c := range []net.Conn{ref, a, b} {
		if err := Tune(c, tu); err != nil {
			t.Fatal(err)
		}
	}
	check(a, "is dialled and tuned again")
	check(b, "is accepted and tuned again")
}

// TestTune: each option is set to its own value, and an option that cannot be set is an error.
// [I-28]
func TestTune(t *testing.T) {
	socket := func(domain, typ int) int {
		fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	get := func(fd, opt int) int {
		v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, opt)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	tcp := socket(unix.AF_INET, unix.SOCK_STREAM)
	if get(tcp, unix.TCP_NODELAY) != 0 {
		t.Fatal("TCP_NODELAY is on before it is set")
	}
	if err := tune(tcp, Tuning{KeepAlive: 7 * time.Second, Congestion: "reno"}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.GetsockoptString(tcp, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil || strings.TrimRight(name, "\x00") != "reno" || get(tcp, unix.TCP_NODELAY) != 1 ||
		get(tcp, unix.TCP_KEEPIDLE) != 7 {
		t.Errorf("congestion control %q (%v), TCP_NODELAY %d, TCP_KEEPIDLE %d", name, err,
			get(tcp, unix.TCP_NODELAY), get(tcp, unix.TCP_KEEPIDLE))
	}
	if err := tune(tcp, Tuning{}); err != nil {
		t.Errorf("the system's congestion control: %v", err)
	}
	for name, bad := range map[string]struct {
		fd int
		Tuning
	}{
		"not TCP":                        {socket(unix.AF_UNIX, unix.SOCK_STREAM), Tuning{}},
		"a time that the system refuses": {tcp, Tuning{KeepAlive: 40000 * time.Second}},
		"no such congestion control":     {tcp, Tuning{Congestion: "none such"}},
	} {
		if err := tune(bad.fd, bad.Tuning); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
