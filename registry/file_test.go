package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestFile: a file has lines of an operator and of registrations. A registration ends with the
// lease or by a release. The operator's lines and comments stay.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		f := NewFile(path)
		if _, err := f.Resolve(ctx, VI, "a"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a missing file answers %v", err)
		}
		l, err := f.Register(ctx, Record{Kind: VI, Name: "a", Value: "1"}, time.Minute)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip("SKIPPED: no registrations on this system:", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, "# a comment\nvi b 2 # fixed\n"+read(t, path))
		check := func(name, want string, wantErr error) {
			t.Helper()
			got, err := f.Resolve(ctx, VI, name)
			if brief(got) != want || !errors.Is(err, wantErr) {
				t.Errorf("%s is %q, %v; want %q, %v", name, brief(got), err, want, wantErr)
			}
		}
		check("a", "a=1", nil)
		check("b", "b=2", nil)
		time.Sleep(40 * time.Second)
		if err := l.Renew(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		check("a", "a=1", nil)
		time.Sleep(time.Second)
		check("a", "", ErrNotFound)
		if err := l.Renew(ctx); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("renewed after its end: %v", err)
		}
		if err := l.Release(ctx); err != nil {
			t.Errorf("released after its end: %v", err)
		}
		l2, err := f.Register(ctx, Record{Kind: VI, Name: "a", Value: "3"}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		check("a", "a=3", nil)
		if err := l2.Release(ctx); err != nil {
			t.Fatal(err)
		}
		check("a", "", ErrNotFound)
		if got, want := read(t, path), "# a comment\nvi b 2 # fixed\n"; got != want {
			t.Errorf("the file has %q, want %q", got, want)
		}

		// If the file can't be read, the known records stay and are marked stale.
		write(t, path, "vi b\n")
		check("b", "b=2 stale", nil)
		if _, err := f.Register(ctx, Record{Kind: VI, Name: "a", Value: "1"}, time.Minute); err == nil ||
			!strings.Contains(err.Error(), "line 1") {
			t.Errorf("registered in a file with an error: %v", err)
		}
		if got := read(t, path); got != "vi b\n" {
			t.Errorf("a file with an error was replaced by %q", got)
		}
		os.Remove(path)
		check("b", "b=2 stale", nil)
		write(t, path, "vi b 4\n")
		check("b", "b=4", nil)
	})
}

// TestFileWatch: a replaced file is read within a second.
func TestFileWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	write(t, path, "vi a 1\n")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := NewFile(path)
		told := make(chan string, 10)
		done := make(chan error)
		go func() { done <- f.Watch(ctx, VI, "a", func(a Answer) { told <- brief(a) }) }()
		if got := <-told; got != "a=1" {
			t.Errorf("first %q", got)
		}
		write(t, path+".new", "vi a 22\n")
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		if got := <-told; got != "a=22" {
			t.Errorf("then %q", got)
		}
		os.Remove(path)
		if got := <-told; got != "a=22 stale" {
			t.Errorf("then %q", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := NewFile(path).Watch(t.Context(), VI, "a", nil); !errors.Is(err, ErrUnavailable) ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file is watched: %v", err)
	}
}

// TestFileConcurrent: no concurrent registration is lost, and no reader sees half a file.
func TestFileConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	write(t, path, "")
	var wg sync.WaitGroup
	const n = 20
	for i := range n {
		wg.Go(func() {
			_, err := NewFile(path).Register(t.Context(),
				Record{Kind: VI, Name: fmt.Sprint("n", i), Value: "1"}, time.Hour)
			if err != nil && !errors.Is(err, errors.ErrUnsupported) {
				t.Error(err)
			}
			if _, err := NewFile(path).Resolve(t.Context(), VI, fmt.Sprint("n", i)); err != nil &&
				!errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if lines := strings.Count(read(t, path), "\n"); lines != n && lines != 0 {
		t.Errorf("%d registrations, want %d", lines, n)
	}
}

func FuzzReadLines(f *testing.F) {
	f.Add("# c\nvi a 1\nsdp *:80 1.2.3.4:5 id=ab until=2026-01-02T03:04:05.6Z\n")
	f.Fuzz(func(t *testing.T, s string) {
		lines, err := readLines(strings.NewReader(s))
		if err != nil {
			return
		}
		for _, l := range lines {
			if l.Kind != "" && l.Check() != nil {
				t.Errorf("%q is a record", l.text)
			}
		}
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	// The file is replaced each time, so that the change is detected even if the time stamps are
	// equal.
	if err := replaceFile(path, 0o644, func(w io.Writer) error { _, err := w.Write([]byte(text)); return err }); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
