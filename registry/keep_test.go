package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A script is a registry of a single record. A test sets the unreachable times, by the clock of the
// bubble.
type script struct {
	mu       sync.Mutex
	begin    time.Time
	down     [][2]time.Duration // intervals in which the registry is unreachable, relative to begin
	removeAt time.Duration      // time at which an operator removes the record; 0 means never
	until    time.Time          // end of the registration; zero means that there is none
	log      []string
}

var errDown = errors.New("down")

func (s *script) now() time.Duration { return time.Since(s.begin) }

func (s *script) say(what string, err error) error {
	s.log = append(s.log, fmt.Sprintf("%v %s %v", s.now(), what, err))
	return err
}

func (s *script) state() error {
	for _, d := range s.down {
		if s.now() >= d[0] && s.now() < d[1] {
			return errDown
		}
	}
	if s.removeAt != 0 && s.now() >= s.removeAt {
		s.until, s.removeAt = time.Time{}, 0
	}
	return nil
}

func (s *script) Register(_ context.Context, _ Record, lease time.Duration) (Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.state(); err != nil {
		return nil, s.say("register", err)
	}
	s.until = time.Now().Add(lease)
	return &scriptLease{s, lease}, s.say("register", nil)
}

func (s *script) Resolve(context.Context, string, string) (Answer, error) {
	return Answer{}, ErrNotFound
}
func (s *script) Watch(context.Context, string, string, func(Answer)) error { return ErrNoList }

type scriptLease struct {
	s     *script
	lease time.Duration
}

func (l *scriptLease) Renew(context.Context) error {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.state(); err != nil {
		return s.say("renew", err)
	}
	if !time.Now().Before(s.until) {
		return s.say("renew", ErrLeaseLost)
	}
	s.until = time.Now().Add(l.lease)
	return s.say("renew", nil)
}

func (l *scriptLease) Release(context.Context) error {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Time{}
	return s.say("release", nil)
}

// TestKeep follows a registration by a clock. The registration must be renewed three times per
// lease, and survive a failure shorter than the lease. After a longer failure, or if an operator
// has removed the record, Keep must register again. Close must withdraw the registration.
func TestKeep(t *testing.T) {
	const lease = 12 * time.Second
	for _, c := range []struct {
		name     string
		down     [][2]time.Duration
		removeAt time.Duration
		closeAt  time.Duration
		gaps     []string // times at which the record was not registered
		reports  []string
	}{
		{name: "well", closeAt: time.Minute},
		{name: "short failure", down: [][2]time.Duration{{5 * time.Second, 14 * time.Second}}, closeAt: time.Minute,
			reports: []string{"8s down", "14s well"}},
		{name: "long failure", down: [][2]time.Duration{{5 * time.Second, 30 * time.Second}}, closeAt: time.Minute,
			gaps: []string{"16s to 30s"}, reports: []string{"8s down", "30s well"}},
		{name: "taken away", removeAt: 9 * time.Second, closeAt: time.Minute, gaps: []string{"12s to 12s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{begin: time.Now(), down: c.down, removeAt: c.removeAt}
				var reports []string
				k, err := Keep(t.Context(), s, Record{Kind: VI, Name: "a", Value: "b"}, lease, func(err error) {
					what := "well"
					if err != nil {
						what = err.Error()
					}
					reports = append(reports, fmt.Sprintf("%v %s", s.now(), what))
				})
				if err != nil {
					t.Fatal(err)
				}
				var gap time.Duration = -1
				var gaps []string
				for ; s.now() < c.closeAt; time.Sleep(time.Second / 2) {
					synctest.Wait()
					s.mu.Lock()
					registered := time.Now().Before(s.until)
					s.mu.Unlock()
					switch {
					case !registered && gap < 0:
						gap = s.now()
					case registered && gap >= 0:
						gaps, gap = append(gaps, fmt.Sprintf("%v to %v", gap, s.now())), -1
					}
				}
				synctest.Wait()
				if c.name == "taken away" { // for less than the interval between two checks
					for i, l := range s.log {
						if l == "12s renew "+ErrLeaseLost.Error() && s.log[i+1] == "12s register <nil>" {
							gaps = append(gaps, "12s to 12s")
						}
					}
				}
				if !slices.Equal(gaps, c.gaps) || !slices.Equal(reports, c.reports) {
					t.Errorf("not registered %q and told %q, want %q and %q", gaps, reports, c.gaps, c.reports)
				}
				if c.name == "well" {
					for i, l := range s.log[1:] {
						if want := fmt.Sprintf("%v renew <nil>", time.Duration(i+1)*lease/3); l != want {
							t.Errorf("%q, want %q", l, want)
						}
					}
				}
				if err := k.Close(); err != nil || !s.until.IsZero() {
					t.Errorf("closed: %v, registered until %v", err, s.until)
				}
				if err := k.Close(); err != nil {
					t.Errorf("closed again: %v", err)
				}
			})
		})
	}
}

// TestKeepRefused: Keep returns an error at once if the first registration fails, or if the lease
// is too short to be renewed in time.
func TestKeepRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{begin: time.Now(), down: [][2]time.Duration{{0, time.Hour}}}
		if _, err := Keep(t.Context(), s, Record{}, time.Minute, nil); !errors.Is(err, errDown) {
			t.Errorf("registered where that fails: %v", err)
		}
		if _, err := Keep(t.Context(), &script{begin: time.Now()}, Record{}, time.Millisecond, nil); err == nil {
			t.Error("a lease of a millisecond was taken")
		}
	})
}

// TestKeepEnds: the end of the context withdraws a registration too.
func TestKeepEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{begin: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		k, err := Keep(ctx, s, Record{}, time.Minute, nil)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.until.IsZero() {
			t.Error("still registered")
		}
		k.end()
	})
}
