package registry

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A zone is a resolver for tests.
type zone struct {
	mu    sync.Mutex // guards the fields below
	srv   map[string][]*net.SRV
	hosts map[string][]string
	fail  error
	asked int
}

func (z *zone) LookupSRV(_ context.Context, service, proto, name string) (string, []*net.SRV, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	if z.fail != nil {
		return "", nil, z.fail
	}
	s := z.srv["_"+service+"._"+proto+"."+name]
	if s == nil {
		return "", nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return name, slices.Clone(s), nil
}

func (z *zone) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	var as []netip.Addr
	for _, h := range z.hosts[host] {
		as = append(as, netip.MustParseAddr(h))
	}
	if as == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return as, nil
}

// change calls f with the lock held, to change the zone.
func (z *zone) change(f func()) {
	z.mu.Lock()
	defer z.mu.Unlock()
	f()
}

// TestDNS checks that the registry queries the names of the zone, and that the answer has the best
// priority with an address. An answer is reused for one refresh interval. If the server is gone,
// the answer is marked stale for two more intervals, and then not used any more.
func TestDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		z := &zone{
			srv: map[string][]*net.SRV{
				"_viaduct._tcp.80.192-0-2-7.sdp.example.com.":    {{Target: "lost.", Port: 1}, {Target: "a.", Port: 8080, Priority: 1}, {Target: "b.", Port: 8081, Priority: 1}, {Target: "a.", Port: 9, Priority: 2}},
				"_viaduct._tcp.80.sdp.example.com.":              {{Target: "a.", Port: 8082}},
				"_viaduct._tcp.80.2001-db8--1.sdp.example.com.":  {{Target: "b.", Port: 8083}},
				"_viaduct._tcp.node7.vi.example.com.":            {{Target: "a.", Port: 3050}},
				"_viaduct._tcp.decidedly-not.vi.example.com.":    {{Target: ".", Port: 0}},
				"_viaduct._tcp.without-address.vi.example.com.":  {{Target: "lost.", Port: 1}},
				"_viaduct._tcp.fabric1.fabric.example.com.":      {{Target: "a.", Port: 3225}},
				"_viaduct._tcp.something.else.vi.example.com.":   {{Target: "a.", Port: 1}},
				"_viaduct._tcp.something.unheard.of.example.com": {{Target: "a.", Port: 1}},
			},
			hosts: map[string][]string{"a.": {"192.0.2.1", "::ffff:192.0.2.2"}, "b.": {"2001:db8::b"}},
		}
		d := &DNS{Domain: "example.com", lookup: z}
		check := func(kind, name, want string, wantErr error) {
			t.Helper()
			a, err := d.Resolve(ctx, kind, name)
			if got := strings.ReplaceAll(brief(a), name+"=", ""); got != want || !errors.Is(err, wantErr) {
				t.Errorf("%s %s is %q, %v; want %q, %v", kind, name, got, err, want, wantErr)
			}
		}
		check(PortMapper, "192.0.2.7:80", "192.0.2.1:8080 192.0.2.2:8080 [2001:db8::b]:8081", nil)
		check(PortMapper, "*:80", "192.0.2.1:8082 192.0.2.2:8082", nil)
		check(PortMapper, "[2001:db8::1]:80", "[2001:db8::b]:8083", nil)
		check(VI, "node7", "192.0.2.1:3050 192.0.2.2:3050", nil)
		check(VI, "decidedly-not", "", ErrNotFound)
		check(VI, "without-address", "", ErrNotFound)
		check(VI, "unknown", "", ErrNotFound)
		check(Fabric, "fabric1", "192.0.2.1:3225 192.0.2.2:3225", nil)
		if _, err := d.Resolve(ctx, VI, "a b"); err == nil {
			t.Error("a name with a space was looked up")
		}
		if err := d.Watch(ctx, VI, "", nil); !errors.Is(err, ErrNoList) {
			t.Errorf("all names are watched: %v", err)
		}
		if _, err := d.Register(ctx, Record{Kind: VI, Name: "n"}, time.Minute); !errors.Is(err, ErrReadOnly) ||
			!strings.Contains(err.Error(), "_viaduct._tcp.n.vi.example.com.") {
			t.Errorf("registered: %v", err)
		}

		n := z.asked
		time.Sleep(defaultRefresh - 1)
		check(VI, "node7", "192.0.2.1:3050 192.0.2.2:3050", nil)
		check(VI, "unknown", "", ErrNotFound)
		if z.asked != n {
			t.Errorf("asked %d times within a refresh", z.asked-n)
		}
		z.fail = &net.DNSError{Err: "server misbehaving", IsTemporary: true}
		time.Sleep(time.Nanosecond)
		check(VI, "node7", "192.0.2.1:3050 192.0.2.2:3050 stale", nil)
		check(VI, "unknown", "", ErrUnavailable)
		time.Sleep(2*defaultRefresh - 1)
		check(VI, "node7", "192.0.2.1:3050 192.0.2.2:3050 stale", nil)
		time.Sleep(time.Nanosecond)
		check(VI, "node7", "", ErrUnavailable)
		z.fail = nil
		check(VI, "node7", "192.0.2.1:3050 192.0.2.2:3050", nil)
	})
}

// TestDNSWatch: after a refresh a watch reports a change of the zone, and also the loss of the
// server.
func TestDNSWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{srv: map[string][]*net.SRV{"_viaduct._tcp.n.vi.example.com.": {{Target: "a.", Port: 1}}},
			hosts: map[string][]string{"a.": {"192.0.2.1"}}}
		d := &DNS{Domain: "example.com.", Refresh: time.Second, lookup: z}
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		type event struct {
			at   time.Duration
			what string
		}
		var told []event
		done := make(chan error)
		go func() {
			done <- d.Watch(ctx, VI, "n", func(a Answer) {
				if w := brief(a); len(told) == 0 || told[len(told)-1].what != w {
					told = append(told, event{time.Since(begin), w})
				}
			})
		}()
		time.Sleep(1500 * time.Millisecond)
		z.change(func() { z.srv["_viaduct._tcp.n.vi.example.com."] = []*net.SRV{{Target: "a.", Port: 2}} })
		time.Sleep(time.Second)
		z.change(func() { z.fail = errors.New("gone") })
		time.Sleep(5 * time.Second)
		z.change(func() { z.fail = nil })
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []event{{0, "n=192.0.2.1:1"}, {2 * time.Second, "n=192.0.2.1:2"},
			{3 * time.Second, "n=192.0.2.1:2 stale"},
			{5 * time.Second, "stale"}, {8 * time.Second, "n=192.0.2.1:2"}}
		if len(told) != len(want) {
			t.Fatalf("told %v, want %v", told, want)
		}
		for i := range want {
			if told[i] != want[i] {
				t.Errorf("told %v, want %v", told[i], want[i])
			}
		}
	})
}
