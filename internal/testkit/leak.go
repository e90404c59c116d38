package testkit

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// ignored returns options for the goroutines that do not belong to the package under test.
func ignored() []goleak.Option {
	return []goleak.Option{
		// This goroutine of the profiler still runs for a moment after profiling has stopped.
		goleak.IgnoreAnyFunction("runtime/pprof.profileWriter"),
		// This goroutine serves an idle connection of a test's http client.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	}
}

// Main runs the tests of a package and exits. It exits with 1 if the tests leak goroutines, or if a
// check returns an error. Checks count other resources (regions, descriptors, sockets).
func Main(m *testing.M, checks ...func() error) {
	code := m.Run()
	if fuzzing() {
		os.Exit(code) // the fuzzer has goroutines of its own that would count as leaks
	}
	if code == 0 {
		checks = append([]func() error{func() error { return leaks(Patience, ignored()...) }}, checks...)
	}
	for _, check := range checks {
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit: left behind:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// NoLeaks fails t if a goroutine started after the call of NoLeaks still runs at the end of t. A
// test that calls NoLeaks must not run in parallel with others.
func NoLeaks(t testing.TB) {
	t.Helper()
	noLeaks(t, Patience)
}

func noLeaks(t testing.TB, patience time.Duration) {
	t.Helper()
	opts := append(ignored(), goleak.IgnoreCurrent())
	t.Cleanup(func() {
		if err := leaks(patience, opts...); err != nil {
			t.Error(err)
		}
	})
}

// leaks waits until no goroutine runs except the caller and those that opts exclude. It returns an
// error with the stacks after patience, because goroutines that are about to end may need long on a
// busy machine.
func leaks(patience time.Duration, opts ...goleak.Option) (err error) {
	for end := time.Now().Add(patience); ; {
		if err = goleak.Find(opts...); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// fuzzing reports whether this process runs under go test -fuzz.
func fuzzing() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		f := flag.Lookup(name)
		if f != nil && f.Value.String() != "" && f.Value.String() != "false" {
			return true
		}
	}
	return false
}
