package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func brief(a Answer) string {
	var s []string
	for _, r := range a.Records {
		s = append(s, r.Name+"="+r.Value)
	}
	if a.Stale {
		s = append(s, "stale")
	}
	return strings.Join(s, " ")
}

// TestTable checks that expired records are not returned, and that answers are marked stale after
// the registry is gone. A watch must report every change and every expiry.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin := time.Now()
		var tab Table
		if _, err := tab.Resolve(ctx, VI, "a"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("an empty table answers %v", err)
		}
		if err := tab.Watch(ctx, VI, "", nil); !errors.Is(err, ErrUnavailable) {
			t.Errorf("an empty table can be watched: %v", err)
		}
		tab.SetStale() // nothing is known that could be stale
		in := func(d time.Duration) time.Time { return begin.Add(d) }
		set := func(rs ...Record) {
			if err := tab.Set(rs); err != nil {
				t.Error(err)
			}
		}
		a, b := Record{VI, "a", "1", in(10 * time.Second)}, Record{VI, "b", "2", time.Time{}}
		set(b, a, Record{VI, "a", "3", in(20 * time.Second)}, Record{Fabric, "a", "9", time.Time{}})

		var seen []string
		done := make(chan error)
		go func() {
			done <- tab.Watch(ctx, VI, "",
				func(a Answer) { seen = append(seen, fmt.Sprintf("%v %s", time.Since(begin), brief(a))) })
		}()
		check := func(name, want string, wantErr error) {
			t.Helper()
			got, err := tab.Resolve(ctx, VI, name)
			if brief(got) != want || !errors.Is(err, wantErr) {
				t.Errorf("after %v: %s is %q, %v; want %q, %v", time.Since(begin), name, brief(got), err, want, wantErr)
			}
		}
		check("a", "a=1 a=3", nil)
		check("x", "", ErrNotFound)
		time.Sleep(9999 * time.Millisecond)
		check("a", "a=1 a=3", nil)
		time.Sleep(time.Millisecond)
		check("a", "a=3", nil)
		time.Sleep(time.Second)
		tab.SetStale()
		check("a", "a=3 stale", nil)
		check("x", "stale", ErrNotFound)
		time.Sleep(9 * time.Second)
		check("a", "stale", ErrUnavailable)
		check("b", "b=2 stale", nil)
		time.Sleep(time.Second)
		set(b)
		check("a", "", ErrNotFound)
		time.Sleep(time.Second)
		set(b) // the same records cause no report
		time.Sleep(time.Second)
		if err := tab.Set([]Record{a, {VI, "a b", "1", time.Time{}}}); err == nil ||
			!strings.Contains(err.Error(), `"a b"`) {
			t.Errorf("a bad record: %v", err)
		}
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := "0s a=1 a=3 b=2; 10s a=3 b=2; 11s a=3 b=2 stale; 20s b=2 stale; 21s b=2; 23s "
		if got := strings.Join(seen, "; "); got != want {
			t.Errorf("watched\n%s\nwant\n%s", got, want)
		}
	})
}

func TestAnswerUntil(t *testing.T) {
	at := time.Unix(100, 0)
	if u := (Answer{Records: []Record{{}, {Until: at.Add(1)}, {Until: at}}}).Until(); u != at {
		t.Errorf("%v, want %v", u, at)
	}
	if u := (Answer{Records: []Record{{}}}).Until(); !u.IsZero() {
		t.Errorf("%v, want none", u)
	}
}

func TestCheck(t *testing.T) {
	good := Record{Kind: "a-1", Name: "[::1]:80", Value: "x/y"}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for _, f := range []func(*Record){
		func(r *Record) { r.Kind = "" }, func(r *Record) { r.Kind = "A" }, func(r *Record) { r.Kind = "a/b" },
		func(r *Record) { r.Name = "" }, func(r *Record) { r.Name = "a/b" }, func(r *Record) { r.Name = "a\nb" },
		func(r *Record) { r.Name = strings.Repeat("a", maxName+1) }, func(r *Record) { r.Name = "a#b" },
		func(r *Record) { r.Name = "a\xff" },
		func(r *Record) { r.Value = "" }, func(r *Record) { r.Value = "a b" },
		func(r *Record) { r.Value = strings.Repeat("a", maxValue+1) },
	} {
		r := good
		if f(&r); r.Check() == nil {
			t.Errorf("%.40q passes", r)
		}
	}
}
