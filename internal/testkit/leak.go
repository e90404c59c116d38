package testkit

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// ignored returns the goroutines that the packages under test do not own.
func ignored() []goleak.Option {
	return []goleak.Option{
		// The profiler's writer lives for a moment after profiling stopped.
		goleak.IgnoreAnyFunction("runtime/pprof.profileWriter"),
		// Idle connections of an http client used by a test.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	}
}

// Main runs the tests of a package and exits. It exits with 1 if the tests leak goroutines, or if a
// check returns an error. Checks count other resources (regions, descriptors, sockets).
func Main(m *testing.M, checks ...func() error) {
	if fuzzing() {
		os.Exit(m.Run()) // the fuzzer keeps goroutines of its own
	}
	finish := goleak.Cleanup(func(code int) {
		for _, check := range checks {
			if err := check(); err != nil {
				fmt.Fprintln(os.Stderr, "testkit: left behind:", err)
				code = max(code, 1)
			}
		}
		os.Exit(code)
	})
	goleak.VerifyTestMain(m, append(ignored(), finish)...)
}

// NoLeaks fails t if goroutines that were started after the call of NoLeaks still run when t ends.
// A test that uses it does not run in parallel.
func NoLeaks(t testing.TB) {
	t.Helper()
	opts := append(ignored(), goleak.IgnoreCurrent())
	t.Cleanup(func() { goleak.VerifyNone(t, opts...) })
}

// fuzzing reports whether this process is part of a go test -fuzz.
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
