package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/wire/portmapwire"
	"viaduct/registry"
)

// A fakeRegistry is a table whose names can be listed unless unlisted is set.
type fakeRegistry struct {
	registry.Table
	unlisted bool
}

func (f *fakeRegistry) Register(context.Context, registry.Record, time.Duration) (registry.Lease, error) {
	return nil, registry.ErrReadOnly
}

func (f *fakeRegistry) Watch(ctx context.Context, kind, name string, fn func(registry.Answer)) error {
	if f.unlisted && name == "" {
		return registry.ErrNoList
	}
	return f.Table.Watch(ctx, kind, name, fn)
}

// TestFollow: a server returns a registered target as long as the target's record is valid. While
// the registry is unreachable, answers must be for one connection, and never contain an expired
// target.
func TestFollow(t *testing.T) {
	for _, services := range [][]netip.AddrPort{nil, {ap("0.0.0.0:80"), ap("192.0.2.7:5432"), ap("192.0.2.7:1")}} {
		t.Run(fmt.Sprint(len(services), " services"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				from := &fakeRegistry{unlisted: services != nil}
				reg := NewRegistry()
				m := newMachine(ServerConfig{Registry: reg, Rate: -1})
				ask := func(service string) string {
					q := portmapwire.Message{Type: portmapwire.Request, AssocHandle: 1,
						Cp: ap("192.0.2.99:1000"), Ap: ap(service)}
					b := m.Handle(time.Now(), netip.MustParseAddr("192.0.2.99"), q.Append(nil), nil)
					got, err := portmapwire.Parse(b)
					if err != nil {
						t.Fatal(err)
					}
					if got.Type == portmapwire.Deny {
						return "denied"
					}
					return fmt.Sprint(got.Ap, " ", PmTime(got.PmTime).Duration())
				}
				check := func(service, want string) {
					t.Helper()
					synctest.Wait()
					if got := ask(service); got != want {
						t.Errorf("%s: %s, want %s", service, got, want)
					}
				}
				set := func(left time.Duration, records ...string) {
					var rs []registry.Record
					for _, r := range records {
						f := strings.Fields(r)
						rs = append(rs, registry.Record{Kind: registry.PortMapper, Name: f[0],
							Value: f[1], Until: time.Now().Add(left)})
					}
					from.Set(rs)
				}
				if err := reg.Follow(ctx, Following{From: from}, nil); !errors.Is(err, registry.ErrUnavailable) &&
					!errors.Is(err, registry.ErrNoList) {
					t.Errorf("followed what knows nothing: %v", err)
				}

				set(10*time.Second, "*:80 :8080", "192.0.2.7:5432 192.0.2.8:1",
					"192.0.2.7:5432 192.0.2.9:2", "192.0.2.7:1 nonsense")
				var told []string
				ready, done := make(chan struct{}), make(chan error)
				go func() {
					done <- reg.Follow(ctx, Following{From: from, Services: services, PmTime: defaultPmTime, Report: func(n int, stale bool, err error) {
						if s := fmt.Sprint(n, " ", stale, " ", err != nil); len(told) == 0 || told[len(told)-1] != s {
							told = append(told, s)
						}
					}}, ready)
				}()
				<-ready
				check("192.0.2.1:80", "192.0.2.1:8080 10s")
				check("192.0.2.7:5432", "192.0.2.8:1 10s")
				check("192.0.2.7:1", "denied")
				time.Sleep(4 * time.Second)
				check("192.0.2.1:80", "192.0.2.1:8080 6s") // the same request as before
				set(time.Minute, "*:80 :8080", "192.0.2.7:5432 192.0.2.8:1")
				check("192.0.2.1:80", "192.0.2.1:8080 30s")
				from.SetStale()
				check("192.0.2.1:80", "192.0.2.1:8080 0s")
				time.Sleep(59900 * time.Millisecond)
				check("192.0.2.7:5432", "192.0.2.8:1 0s")
				time.Sleep(100 * time.Millisecond)
				check("192.0.2.7:5432", "denied")
				check("192.0.2.1:80", "denied")
				set(time.Minute, "*:80 :8081")
				check("192.0.2.1:80", "192.0.2.1:8081 30s")
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if got, want := strings.Join(told, ", "), "2 false true, 2 false false, 2 true false, 0 true false, 1 false false"; got != want && services == nil {
					t.Errorf("told %s, want %s", got, want)
				}
			})
		})
	}
}

// TestReplaceTurns: the turn of targets continues after the mappings have changed.
func TestReplaceTurns(t *testing.T) {
	r := NewRegistry()
	var got []string
	for range 4 {
		fresh := NewRegistry()
		fresh.Set(ap("0.0.0.0:80"), NewMapping(ap("10.0.0.1:1"), ap("10.0.0.2:2")))
		r.replace(fresh)
		s, _ := r.lookup(ap("10.0.0.9:80"))
		a, _, _ := s.pick(time.Time{}, ap("10.0.0.9:80"))
		got = append(got, a.String())
	}
	if s := strings.Join(got, " "); s != "10.0.0.1:1 10.0.0.2:2 10.0.0.1:1 10.0.0.2:2" {
		t.Error(s)
	}
}

// TestEnds: a target is returned until its end, and the lifetime of an answer does not exceed the
// remaining time.
func TestEnds(t *testing.T) {
	begin := time.Unix(1000, 0)
	r := NewRegistry()
	bad := Mapping{Targets: []netip.AddrPort{ap("10.0.0.1:1")}, Ends: make([]time.Time, 2)}
	if err := r.Set(ap("0.0.0.0:80"), bad); err == nil {
		t.Error("two ends for one target were taken")
	}
	for _, life := range []PmTime{Once, defaultPmTime, Forever} {
		m := Mapping{PmTime: life, Targets: []netip.AddrPort{ap("10.0.0.1:1"), ap("10.0.0.2:2")},
			Ends: []time.Time{begin.Add(10 * time.Second), {}}}
		if err := r.Set(ap("0.0.0.0:80"), m); err != nil {
			t.Fatal(err)
		}
		s, _ := r.lookup(ap("10.0.0.9:80"))
		for _, c := range []struct {
			after time.Duration
			first bool // the first target has not ended
		}{{0, true}, {9999 * time.Millisecond, true}, {10 * time.Second, false}, {time.Hour, false}} {
			now, seen := begin.Add(c.after), false
			for range 2 {
				a, l, ok := s.pick(now, ap("10.0.0.9:80"))
				want := life
				if a.Port() == 1 {
					seen = true
					want = min(life, PmTimeFor(10*time.Second-c.after))
				}
				if !ok || l != want {
					t.Errorf("lifetime %d, after %v: %v for %d, %t; want it for %d", life, c.after, a, l, ok, want)
				}
			}
			if _, ok := s.serves(now, ap("10.0.0.1:1"), ap("10.0.0.9:80")); seen != c.first || ok != c.first {
				t.Errorf("lifetime %d, after %v: handed out %t, serves %t, want %t", life, c.after, seen, ok, c.first)
			}
		}
	}
}
