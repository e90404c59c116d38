package viaduct_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestReadme: the first program prints the output in README.md, and README.md has the two commands
// for newcomers and at most 120 lines.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", "./examples/first").CombinedOutput()
	if err != nil || string(out) != "hello, memory\n" {
		t.Errorf("it prints %q, %v", out, err)
	}
	if n := strings.Count(string(readme), "\n"); n > 120 {
		t.Errorf("README.md has %d lines: at most 120 are read", n)
	}
	for _, said := range []string{"`go run ./examples/first`", "`hello, memory`"} {
		if !strings.Contains(string(readme), said) {
			t.Errorf("README.md no longer says %s", said)
		}
	}
	for _, command := range []string{"go run ./cmd/viaduct demo", "go test ./..."} {
		if !strings.Contains(string(readme), "\n    "+command+"\n") {
			t.Errorf("README.md no longer says %q", command)
		}
	}
}
