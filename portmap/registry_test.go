package portmap

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseRegistry(t *testing.T) {
	r, err := ParseRegistry(strings.NewReader(`
# comment
10.0.0.1:80      10.0.0.1:8080
*:5432           :15432   cache=10s # tail
[2001:db8::1]:80 [2001:db8::2]:81,[2001:db8::3]:82  cache=never
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ask  string
		want string // "" means that no mapping is found
		life PmTime
	}{
		{"10.0.0.1:80", "10.0.0.1:8080", defaultPmTime},
		{"10.0.0.2:80", "", 0},
		{"10.9.9.9:5432", "10.9.9.9:15432", 40},
		{"[fd00::1]:5432", "[fd00::1]:15432", 40},
		{"[2001:db8::1]:80", "[2001:db8::2]:81", Once},
		{"[2001:db8::1]:80", "[2001:db8::3]:82", Once}, // the next target in turn
		{"[2001:db8::1]:80", "[2001:db8::2]:81", Once},
	} {
		s, ok := r.lookup(ap(c.ask))
		if !ok {
			if c.want != "" {
				t.Errorf("%s not found", c.ask)
			}
			continue
		}
		got, _, _ := s.pick(time.Time{}, ap(c.ask))
		if got.String() != c.want || s.PmTime != c.life {
			t.Errorf("%s gave %v for %d, want %s for %d", c.ask, got, s.PmTime, c.want, c.life)
		}
	}
	for _, bad := range []string{"x", "a:b c:d", "10.0.0.1:80 10.0.0.1:0", "1.2.3.4:5 6.7.8.9:10 ttl=4", "*:1 :2 cache=x",
		"*:0 :2", "*:1 224.0.0.1:2", "*:1 :2 cache=1s extra", "*:1 " + strings.Repeat(":2,", 70) + ":2"} {
		if _, err := ParseRegistry(strings.NewReader("\n" + bad)); err == nil ||
			!strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v, want an error naming line 2", bad, err)
		}
	}
}

func TestPickFamily(t *testing.T) {
	r := NewRegistry()
	r.Set(ap("0.0.0.0:80"), NewMapping(ap("10.0.0.1:1"), ap("[2001:db8::1]:2")))
	s, _ := r.lookup(ap("[::1]:80"))
	for range 3 {
		if got, _, ok := s.pick(time.Time{}, ap("[::1]:80")); !ok || got != ap("[2001:db8::1]:2") {
			t.Errorf("IPv6 question answered with %v", got)
		}
	}
	r.Set(ap("0.0.0.0:81"), NewMapping(ap("10.0.0.1:1")))
	s, _ = r.lookup(ap("[::1]:81"))
	if got, _, ok := s.pick(time.Time{}, ap("[::1]:81")); ok {
		t.Errorf("IPv6 question answered with %v", got)
	}
}

func TestWatchFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "map")
	write := func(s string) {
		t.Helper()
		tmp := path + ".new"
		if err := os.WriteFile(tmp, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, path); err != nil {
			t.Fatal(err)
		}
	}
	write("*:80 :8080\n")
	r := NewRegistry()
	type ev struct {
		n   int
		err error
	}
	events, ready, done := make(chan ev, 10), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- r.WatchFile(ctx, path, 2*time.Millisecond, ready, func(n int, err error) { events <- ev{n, err} })
	}()
	<-ready
	if r.Len() != 1 {
		t.Errorf("first read left %d services", r.Len())
	}
	write("*:80 :8080\n*:81 :8081\n")
	if e := <-events; e.err != nil || e.n != 2 {
		t.Errorf("after the change: %+v", e)
	}
	write("nonsense\n")
	if e := <-events; e.err == nil {
		t.Error("a faulty file was not reported")
	}
	if r.Len() != 2 {
		t.Errorf("a faulty file changed the registry to %d services", r.Len())
	}
	write("*:90 :9090\n")
	if e := <-events; e.err != nil || e.n != 1 {
		t.Errorf("after the repair: %+v", e)
	}
	os.Remove(path)
	if e := <-events; e.err == nil {
		t.Error("a missing file was not reported")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := NewRegistry().WatchFile(t.Context(), path, 0, nil, nil); err == nil {
		t.Error("watching a missing file began")
	}
}

func FuzzParseRegistry(f *testing.F) {
	f.Add("*:80 :8080\n10.0.0.1:1 [::1]:2,3.4.5.6:7 cache=9s")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRegistry(strings.NewReader(s))
		if err != nil {
			return
		}
		for k := range r.m {
			svc, ok := r.lookup(k)
			if !ok {
				t.Fatalf("%v is registered and not found", k)
			}
			for _, q := range []netip.AddrPort{k, netip.AddrPortFrom(netip.IPv6LinkLocalAllNodes(), 80)} {
				if got, _, ok := svc.pick(time.Time{}, q); ok && (got.Port() == 0 || !got.IsValid()) {
					t.Fatalf("%v answers %v", k, got)
				}
			}
		}
	})
}

// TestPickWildcards: if a service listens at the wildcard address of each family on different
// ports, a client gets the ports of its own family, in turn. [SDP-7.4-24]
func TestPickWildcards(t *testing.T) {
	v4, v6 := ap("192.0.2.1:80"), ap("[2001:db8::1]:80")
	for _, c := range []struct {
		name    string
		targets []string
		asked   netip.AddrPort
		want    []string
	}{
		{"both, IPv4 asked", []string{"0.0.0.0:4", "[::]:6"}, v4, []string{"192.0.2.1:4", "192.0.2.1:4"}},
		{"both, IPv6 asked", []string{"0.0.0.0:4", "[::]:6"}, v6, []string{"[2001:db8::1]:6", "[2001:db8::1]:6"}},
		{"one of IPv4", []string{"0.0.0.0:4"}, v6, []string{"[2001:db8::1]:4"}},
		{"one of IPv6", []string{"[::]:6"}, v4, []string{"192.0.2.1:6"}},
		{"exact before the wildcard of the other family", []string{"[::]:6", "192.0.2.7:4"}, v4, []string{"192.0.2.7:4", "192.0.2.7:4"}},
		{"in turn", []string{"0.0.0.0:4", "[::]:6", "192.0.2.7:5"}, v4, []string{"192.0.2.1:4", "192.0.2.7:5", "192.0.2.1:4"}},
		{"another family only", []string{"[2001:db8::2]:6"}, v4, []string{""}},
	} {
		var s service
		for _, a := range c.targets {
			s.Targets = append(s.Targets, ap(a))
		}
		for i, want := range c.want {
			got, _, ok := s.pick(time.Time{}, c.asked)
			if ok != (want != "") || ok && got.String() != want {
				t.Errorf("%s, request %d: %v, %t; want %q", c.name, i+1, got, ok, want)
			}
		}
	}
}
