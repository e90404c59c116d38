package viaduct_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestReadme: the program in the README is the one in examples/first, letter by
// letter, and does what the README says.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	program, _, ended := strings.Cut(rest, "```")
	if !ok || !ended {
		t.Fatal("README.md shows no program")
	}
	file, err := os.ReadFile("examples/first/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if program != string(file) {
		t.Error("the program in README.md is not examples/first/main.go")
	}
	out, err := exec.Command("go", "run", "./examples/first").CombinedOutput()
	if err != nil || string(out) != "hello, memory\n" {
		t.Errorf("it prints %q, %v", out, err)
	}
	for _, command := range []string{"go run -pgo=off ./cmd/viaduct demo", "go test ./..."} {
		if !strings.Contains(string(readme), "\n    "+command+"\n") {
			t.Errorf("README.md no longer says %q", command)
		}
	}
}
