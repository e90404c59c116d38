//go:build linux && (amd64 || arm64)

package main

import "testing"

// TestJudgeMPI4Py: the suite of mpi4py has passed if every rank says so, in whatever order their
// lines appear.
func TestJudgeMPI4Py(t *testing.T) {
	const rule = "----------------------------------------------------------------------"
	for _, c := range []struct {
		name, out, note string
	}{
		{"one after the other", rule + "\nRan 5 tests in 1.2s\n\nOK (skipped=2)\n" + rule + "\nRan 5 tests in 1.3s\n\nOK (skipped=2)\n", "5 tests in each of 2 ranks: OK (skipped=2)"},
		{"mixed", rule + "\n" + rule + "Ran 5 tests in 1.2s\n\nOK\n\nRan 5 tests in 1.3s\n\nOK\n", "5 tests in each of 2 ranks: OK"},
		{"one failed", rule + "\nRan 5 tests in 1.2s\n\nOK\n" + rule + "\nRan 5 tests in 1.3s\n\nFAILED (errors=1)\n", ""},
		{"one ended early", rule + "\nRan 5 tests in 1.2s\n\nOK\nSegmentation fault\nRan 5 tests in 1.3s\n", ""},
		{"none", "mpirun was unable to launch", ""},
	} {
		if note, err := judgeMPI4Py(c.out); note != c.note || (err == nil) != (c.note != "") {
			t.Errorf("%s: %q, %v, want %q", c.name, note, err, c.note)
		}
	}
}
