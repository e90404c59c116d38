//go:build linux && (amd64 || arm64)

package rdma

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A port can be bound once, as in the kernel's rdma_cm: see cma_check_port in the kernel's source
// for the two errors.
func TestPortTable(t *testing.T) {
	const reuse, ownFamily = 1, 2
	of := func(space uint16, at string, flags int) *binding {
		return &binding{space: space, at: netip.MustParseAddrPort(at), reuse: flags&reuse != 0,
			ownFamily: flags&ownFamily != 0}
	}
	for _, c := range []struct {
		name          string
		first, second *binding
		want          unix.Errno
	}{
		{"the same address", of(psTCP, "127.0.0.1:7", 0), of(psTCP, "127.0.0.1:7", 0), unix.EADDRINUSE},
		{"another port", of(psTCP, "127.0.0.1:7", 0), of(psTCP, "127.0.0.1:8", 0), 0},
		{"another address", of(psTCP, "127.0.0.1:7", 0), of(psTCP, "127.0.0.2:7", 0), 0},
		{"another port space", of(psTCP, "127.0.0.1:7", 0), of(psUDP, "127.0.0.1:7", 0), 0},
		{"all addresses, then one", of(psTCP, "0.0.0.0:7", 0), of(psTCP, "127.0.0.1:7", 0), unix.EADDRNOTAVAIL},
		{"one address, then all", of(psTCP, "127.0.0.1:7", 0), of(psTCP, "0.0.0.0:7", 0), unix.EADDRNOTAVAIL},
		{"one does not share", of(psTCP, "127.0.0.1:7", reuse), of(psTCP, "127.0.0.1:7", 0), unix.EADDRINUSE},
		{"both share", of(psTCP, "127.0.0.1:7", reuse), of(psTCP, "127.0.0.1:7", reuse), 0},
		{"IPv4 beside IPv6 alone", of(psTCP, "0.0.0.0:7", ownFamily), of(psTCP, "[::]:7", ownFamily), 0},
		{"IPv4 beside IPv6 with IPv4", of(psTCP, "0.0.0.0:7", ownFamily), of(psTCP, "[::]:7", 0), unix.EADDRNOTAVAIL},
	} {
		var ports portTable
		if e := ports.add(c.first); e != 0 {
			t.Fatalf("%s: the first: %v", c.name, e)
		}
		if e := ports.add(c.second); e != c.want {
			t.Errorf("%s: %v, want %v", c.name, e, c.want)
		}
		ports.remove(c.first)
		if c.want != 0 {
			if e := ports.add(c.second); e != 0 {
				t.Errorf("%s: %v after the first was removed", c.name, e)
			}
		}
		if ports.remove(c.second); len(ports.owners) != 0 {
			t.Errorf("%s: %d ports are left", c.name, len(ports.owners))
		}
	}
}

// A listener does not share the port, neither at once nor later.
func TestPortTableListener(t *testing.T) {
	var ports portTable
	at := netip.MustParseAddrPort("127.0.0.1:7")
	a, b, c := &binding{at: at, reuse: true}, &binding{at: at, reuse: true}, &binding{at: at, reuse: true}
	for i, b := range []*binding{a, b} {
		if e := ports.add(b); e != 0 {
			t.Fatalf("binding %d: %v", i, e)
		}
	}
	if e := ports.exclude(a); e != unix.EADDRINUSE {
		t.Errorf("listen beside another: %v, want EADDRINUSE", e)
	}
	ports.remove(b)
	if e := ports.exclude(a); e != 0 {
		t.Errorf("listen alone: %v", e)
	}
	if e := ports.add(c); e != unix.EADDRINUSE {
		t.Errorf("bind beside a listener: %v, want EADDRINUSE", e)
	}
}
