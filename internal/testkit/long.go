package testkit

import (
	"os"
	"testing"
)

// LongRuns reports whether tests run at full length: whether the environment has VIADUCT_LONG,
// which .ci/run sets for its test section. Without it a newcomer's go test ./... repeats less.
func LongRuns() bool { return os.Getenv("VIADUCT_LONG") != "" }

// Long skips the test unless tests run at full length. takes is what the test costs, as in "40 s".
// CONTRIBUTING.md lists the tests that call it.
func Long(t testing.TB, takes string) {
	t.Helper()
	if !LongRuns() {
		t.Skipf("SKIPPED: takes %s: VIADUCT_LONG=1 runs it, as .ci/run test does", takes)
	}
}
