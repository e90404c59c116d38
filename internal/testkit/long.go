package testkit

import (
	"os"
	"testing"
)

// LongRuns reports whether tests run at full length: whether the environment variable VIADUCT_LONG
// is set. .ci/run sets VIADUCT_LONG for the test section. Without VIADUCT_LONG, go test ./... makes
// fewer repetitions.
func LongRuns() bool { return os.Getenv("VIADUCT_LONG") != "" }

// Long skips the test unless tests run at full length. takes is the duration of the test, for
// example "40 s". CONTRIBUTING.md lists the tests that call Long.
func Long(t testing.TB, takes string) {
	t.Helper()
	if !LongRuns() {
		t.Skipf("SKIPPED: takes %s: VIADUCT_LONG=1 runs it, as .ci/run test does", takes)
	}
}
