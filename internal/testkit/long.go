package testkit

import (
	"os"
	"testing"
)

// LongRuns reports whether tests run at full length: whether VIADUCT_LONG is set in the
// environment. .ci/run sets it for its test section. Without it go test ./... repeats less and is
// quicker.
func LongRuns() bool { return os.Getenv("VIADUCT_LONG") != "" }

// Long skips the test unless tests run at full length. takes is the duration of the test, as in "40
// s". CONTRIBUTING.md lists the tests that call it.
func Long(t testing.TB, takes string) {
	t.Helper()
	if !LongRuns() {
		t.Skipf("SKIPPED: takes %s: VIADUCT_LONG=1 runs it, as .ci/run test does", takes)
	}
}
