package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// goTest runs go test -json on a module with the given files and passes the output to follow.
func goTest(t *testing.T, files map[string]string) (ok bool, out, saved string) {
	t.Helper()
	testkit.Long(t, "10 s together with the others that run go test")
	dir := t.TempDir()
	files["go.mod"] = "module m\n\ngo 1.26\n"
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-json", "-vet=off", "./...")
	cmd.Dir = dir
	js, _ := cmd.CombinedOutput() // returns an error if tests fail
	var w bytes.Buffer
	file := filepath.Join(t.TempDir(), "results")
	ok, err := follow(bytes.NewReader(js), &w, file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return ok, w.String(), string(b)
}

func TestFollow(t *testing.T) {
	const head = "package p\n\nimport \"testing\"\n\n"
	for _, tc := range []struct {
		name  string
		files map[string]string
		ok    bool
		want  []string
	}{
		{"passes", map[string]string{"p/p_test.go": head + `
			func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) {}) }
			func TestB(t *testing.T) { t.Skip("no card") }
			func TestC(t *testing.T) { t.Skip("no card") }
			func TestD(t *testing.T) { t.SkipNow() }`},
			true, []string{"ok   m/p", "SKIP m/p: no card (TestB and 1 more)\n", "SKIP m/p: no reason given (TestD)\n", "2 passed, 0 failed, 3 skipped\n"}},
		{"fails", map[string]string{"p/p_test.go": head + `
			func TestA(t *testing.T) { t.Log("quiet") }
			func TestB(t *testing.T) { t.Error("seven is not eight") }`},
			false, []string{"--- FAIL: m/p TestB", "seven is not eight", "FAIL m/p", "1 passed, 1 failed, 0 skipped\n"}},
		{"panics", map[string]string{"p/p_test.go": head + `
			func TestA(t *testing.T) { var p *int; *p = 1 }`},
			false, []string{"nil pointer", "FAIL m/p", "0 passed, 1 failed"}},
		{"exits", map[string]string{"p/p_test.go": strings.Replace(head, `"testing"`, `("testing"; "os")`, 1) + `
			func TestA(t *testing.T) { os.Exit(3) }`},
			false, []string{"FAIL m/p", "0 passed, 1 failed"}},
		{"does not build", map[string]string{"p/p_test.go": head + `
			func TestA(t *testing.T) { nonsense() }`, "q/q_test.go": strings.Replace(head, "package p", "package q", 1) + `
			func TestA(t *testing.T) {}`},
			false, []string{"undefined: nonsense", "FAIL m/p", "ok   m/q", "1 passed, 0 failed, 0 skipped\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ok, out, _ := goTest(t, tc.files)
			if ok != tc.ok {
				t.Errorf("ok = %v", ok)
			}
			for _, w := range tc.want {
				if !strings.Contains(out, w) {
					t.Errorf("output lacks %q:\n%s", w, out)
				}
			}
			if strings.Contains(out, "quiet") {
				t.Errorf("output of a test that passed:\n%s", out)
			}
		})
	}
}

// TestSlow: the slowest tests are named, the slowest first, and no more than ten; subtests count
// towards their test.
func TestSlow(t *testing.T) {
	var in, w strings.Builder
	for i := range 13 {
		fmt.Fprintf(&in, `{"Action":"pass","Package":"p","Test":"Test%02d","Elapsed":%d.5}`+"\n", i, i)
	}
	in.WriteString(`{"Action":"pass","Package":"p","Test":"Test12/part","Elapsed":11}` + "\n")
	if ok, err := follow(strings.NewReader(in.String()), &w, ""); !ok || err != nil {
		t.Fatal(ok, err)
	}
	lines := strings.Split(w.String(), "\n")
	if len(lines) != 12 || lines[0] != "slow 12.5s p Test12" || lines[9] != "slow 3.5s p Test03" || lines[10] != "14 passed, 0 failed, 0 skipped" {
		t.Errorf("%q", lines)
	}
}

func TestSum(t *testing.T) {
	var w bytes.Buffer
	ok, err := sum(strings.NewReader("pass p A\nskip p B\npass p B\npass p C\nfail p C\npass q A/with space\nskip q D\n"), &w)
	if ok || err != nil || w.String() != "3 passed, 1 failed\n" {
		t.Errorf("%v %v %q", ok, err, w.String())
	}
	if _, err := sum(strings.NewReader("nonsense\n"), &w); err == nil {
		t.Error("nonsense was counted")
	}
}
