package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table of a document is replaced, what stands around it is not.
func TestUpdate(t *testing.T) {
	f := filepath.Join(t.TempDir(), "d.md")
	if err := os.WriteFile(f, []byte("before\n"+tableBegins+"old\n"+tableEnds+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &report{Machine: "a machine", Lines: []line{{Contest: "c", Metric: "m", Ours: "o", Verdict: goalMet}}}
	for range 2 { // it can be done again
		if err := r.update(f); err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(f)
		s := string(b)
		if !strings.HasPrefix(s, "before\n"+tableBegins) || !strings.HasSuffix(s, tableEnds+"after\n") ||
			strings.Contains(s, "old") || strings.Count(s, "| c: m |") != 1 {
			t.Fatalf("%s", s)
		}
	}
	if err := os.WriteFile(f, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.update(f); err == nil {
		t.Error("a document without marks was accepted")
	}
}
