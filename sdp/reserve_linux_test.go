package sdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestReserve: the address for the Port Mapper stays reserved until release is called, and only
// connections of the dialer can use the address.
func TestReserve(t *testing.T) { // [D-57] [D-58] [SDP-7.5.1-6]
	service := netip.MustParseAddrPort("127.0.0.1:9")
	port := portOfNobody(t)
	for _, v := range []struct {
		what    string
		at      net.Addr // Dialer.Net.LocalAddr
		service netip.AddrPort
		ip      string
		port    int // expected port; 0 for any
	}{
		{"by the route", nil, service, "127.0.0.1", 0},
		{"no address", (*net.TCPAddr)(nil), service, "127.0.0.1", 0},
		{"of another kind", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 7), Port: port}, service, "127.0.0.1", 0},
		{"an address", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 5)}, service, "127.0.0.5", 0},
		{"an address and a port", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 5), Port: port}, service, "127.0.0.5", port},
		{"a port", &net.TCPAddr{Port: port}, service, "127.0.0.1", port},
		{"a port of any address", &net.TCPAddr{IP: net.IPv4zero, Port: port}, service, "127.0.0.1", port},
		{"IPv6", nil, netip.MustParseAddrPort("[::1]:9"), "::1", 0},
		{"an IPv6 address", &net.TCPAddr{IP: net.IPv6loopback, Port: port}, netip.MustParseAddrPort("[::1]:9"), "::1", port},
	} {
		t.Run(v.what, func(t *testing.T) {
			testkit.NeedHost(t, v.ip)
			d := Dialer{Net: net.Dialer{LocalAddr: v.at}}
			files := openFiles()
			local, release, err := d.reserve(v.service)
			if err != nil {
				t.Fatal(err)
			}
			if local.Addr() != netip.MustParseAddr(v.ip) || local.Port() < 1024 ||
				v.port != 0 && int(local.Port()) != v.port {
				t.Errorf("%v", local)
			}
			if n := openedSince(files); n != 1 {
				t.Errorf("%d descriptors are held, want 1", n)
			}
			// Another program's socket cannot use the address.
			lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
				raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) })
				return err
			}}
			if l, err := lc.Listen(t.Context(), "tcp", local.String()); err == nil {
				l.Close()
				t.Error("another program can take the address")
			}
			// A connection of the dialer can use the address.
			ln, err := net.Listen("tcp", netip.AddrPortFrom(v.service.Addr(), 0).String())
			if err != nil {
				t.Fatal(err)
			}
			nd := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(local), Control: reuse}
			c, err := nd.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
			ln.Close()
			release()
			release()
			if n := openedSince(files); n != 0 {
				t.Errorf("%d descriptors are left", n)
			}
			l, err := lc.Listen(t.Context(), "tcp", local.String())
			if err != nil {
				t.Fatalf("the address is not free afterwards: %v", err)
			}
			l.Close()
		})
	}
	t.Run("not wanted", func(t *testing.T) {
		files := openFiles()
		local, release, err := (&Dialer{NoCpPort: true}).reserve(service)
		if err != nil || local.IsValid() || openedSince(files) != 0 {
			t.Errorf("%v, %v, %d descriptors", local, err, openedSince(files))
		}
		release()
	})
	t.Run("not ours", func(t *testing.T) {
		for _, at := range []*net.TCPAddr{
			{IP: net.IPv4(192, 0, 2, 1)},
			{IP: net.ParseIP("fe80::1"), Zone: "none0"}, // the interface does not exist
		} {
			if at.IP.To4() == nil {
				testkit.NeedHost(t, "::1")
			}
			files := openFiles()
			_, release, err := (&Dialer{Net: net.Dialer{LocalAddr: at}}).reserve(service)
			var oe *net.OpError
			if !errors.As(err, &oe) || oe.Op != "bind" || openedSince(files) != 0 {
				t.Errorf("%v: %v, %d descriptors are left", at, err, openedSince(files))
			}
			release()
		}
	})
	t.Run("no descriptors", func(t *testing.T) {
		var lim unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
			t.Fatal(err)
		}
		few := lim
		few.Cur = 3
		files := openFiles()
		for _, at := range []net.Addr{nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 5)}} {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
				t.Fatal(err)
			}
			_, release, err := (&Dialer{Net: net.Dialer{LocalAddr: at}}).reserve(service)
			if lerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); lerr != nil {
				t.Fatal(lerr)
			}
			if !errors.Is(err, unix.EMFILE) || openedSince(files) != 0 {
				t.Errorf("from %v: %v, %d descriptors are left", at, err, openedSince(files))
			}
			release()
		}
	})
	t.Run("link-local", func(t *testing.T) {
		ifs, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, ifi := range ifs {
			addrs, _ := ifi.Addrs()
			for _, a := range addrs {
				ip, _, err := net.ParseCIDR(a.String())
				if err != nil || ip.To4() != nil || !ip.IsLinkLocalUnicast() {
					continue
				}
				local, release, err := (&Dialer{Net: net.Dialer{LocalAddr: &net.TCPAddr{IP: ip, Zone: ifi.Name}}}).reserve(service)
				if err != nil || local.Addr().String() != fmt.Sprintf("%v%%%s", ip, ifi.Name) || local.Port() == 0 {
					t.Errorf("%v, %v", local, err)
				}
				release()
				return
			}
		}
		t.Skip("SKIPPED: no interface has a link-local IPv6 address")
	})
}

// portOfNobody returns a free port that the system gives to no socket on its own, if there is one.
func portOfNobody(t *testing.T) int {
	t.Helper()
	lowest, highest := 0, 0 // of the ports that the system gives
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(b), &lowest, &highest)
	}
	if err != nil {
		t.Fatal(err)
	}
	ports := portsBetween(highest+1, 65535)
	if len(ports) == 0 {
		ports = portsBetween(1024, lowest-1)
	}
	rand.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	for _, p := range append(ports, 0) {
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", p)); err == nil {
			l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
	t.Fatal("no port is free")
	return 0
}

func portsBetween(lowest, highest int) (ports []int) {
	for p := lowest; p <= highest; p++ {
		ports = append(ports, p)
	}
	return ports
}

// openFiles returns the open descriptors of this process, each with its file.
func openFiles() map[string]bool {
	const dir = "/proc/self/fd/"
	files := map[string]bool{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if file, err := os.Readlink(dir + e.Name()); err == nil {
			files[e.Name()+" "+file] = true
		}
	}
	return files
}

// openedSince returns the number of open descriptors that are not in before. Descriptors that other
// tests have left to be closed do not count.
func openedSince(before map[string]bool) (n int) {
	for f := range openFiles() {
		if !before[f] {
			n++
		}
	}
	return n
}
