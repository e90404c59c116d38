package mapper

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"viaduct/portmap"
)

// TestMayRegister: a user may register only if all listeners at the ports of the registration are
// the user's own. Root and the user of the Port Mapper may register any ports.
func TestMayRegister(t *testing.T) {
	owners := func(port uint16) ([]int, error) {
		switch port {
		case 80, 8080:
			return []int{1001}, nil
		case 81:
			return []int{1001, 1002}, nil
		case 82:
			return nil, errors.New("no socket monitor")
		}
		return nil, nil
	}
	at := func(ports ...uint16) (all []netip.AddrPort) {
		for _, p := range ports {
			all = append(all, netip.AddrPortFrom(netip.IPv4Unspecified(), p))
		}
		return all
	}
	for _, tc := range []struct {
		what    string
		uid     int
		service uint16
		targets []netip.AddrPort
		refused string // a part of the reason; "" if the registration is allowed
	}{
		{"its own service", 1001, 80, at(8080), ""},
		{"another user's service", 1003, 80, at(8080), "another user listens at port 80"},
		{"a port that it shares", 1001, 81, at(8080), "another user listens at port 81"},
		{"a target where nothing listens", 1001, 80, at(8081), "nothing listens at port 8081"},
		{"one good target and one of another", 1001, 80, at(8080, 81), "another user listens at port 81"},
		{"where the kernel does not tell", 1001, 82, at(8080), "no socket monitor"},
		{"the end of a service", 1003, 80, nil, ""},
		{"root", 0, 80, at(8081), ""},
		{"the same user", os.Geteuid(), 80, at(8081), ""},
		{"too many targets", 0, 80, slices.Repeat(at(8080), maxTargets+1), "more than"},
	} {
		err := peer{uid: tc.uid}.mayRegister(registration{at(tc.service)[0], tc.targets}, owners)
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: %v, want %q", tc.what, err, tc.refused)
		}
	}
}

// TestTable: a conventional address has the targets of all services registered for the address.
// When a service ends, the service's targets are removed.
func TestTable(t *testing.T) {
	tb := newTable(portmap.NewRegistry())
	a := netip.MustParseAddrPort
	http := a("0.0.0.0:80")
	one, two := new(int), new(int)
	for _, step := range []struct {
		what string
		do   func() error
		want int // number of services
	}{
		{"the first", func() error { return tb.set(one, http, []netip.AddrPort{a("0.0.0.0:8080")}) }, 1},
		{"the second", func() error { return tb.set(two, http, []netip.AddrPort{a("0.0.0.0:8081")}) }, 1},
		{"another service", func() error { return tb.set(two, a("0.0.0.0:81"), []netip.AddrPort{a("0.0.0.0:8082")}) }, 2},
		{"the end of the first", func() error { tb.drop(one); return nil }, 2},
		{"the end of one of two", func() error { return tb.set(two, http, nil) }, 1},
		{"the end of the second", func() error { tb.drop(two); return nil }, 0},
	} {
		if err := step.do(); err != nil || tb.registry.Len() != step.want {
			t.Errorf("%s: %v, %d services, want %d", step.what, err, tb.registry.Len(), step.want)
		}
	}
	if err := tb.set(one, http, []netip.AddrPort{{}}); err == nil || tb.registry.Len() != 0 {
		t.Errorf("a target without an address: %v, %d services", err, tb.registry.Len())
	}
}
