package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"viaduct/internal/tools/register"
)

// module writes a module whose package p keeps the rows MPA-1-1 to MPA-1-9, and
// returns its root.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	put := func(name, text string) {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	matrix := make(map[string]string)
	for _, d := range register.Documents {
		if len(d.Key) == 1 {
			matrix[d.File] += fmt.Sprintf("### %s-01 Decision\n", d.Key)
			continue
		}
		matrix[d.File] += "\n| id | level | requirement | who | how to observe |\n|---|---|---|---|---|\n"
		for n := range 9 {
			matrix[d.File] += fmt.Sprintf("| %s-1-%d | MUST | Rule. | both | Wire. |\n", d.Key, n+1)
		}
	}
	for name, text := range matrix {
		put("docs/requirements/"+name, text)
	}
	put("docs/requirements/exceptions.md", "")
	put("go.mod", "module m\n\ngo 1.26\n")
	for name, text := range files {
		put(name, text)
	}
	return root
}

const code = `package p

import "errors"

var errShort = errors.New("short")

// header reads a header. [MPA-1-1]
func header(b []byte) (n int, err error) {
	if len(b) < 2 {
		return 0, errShort
	}
	return int(b[0]) + 2, nil
}

func free(a, b bool) int {
	if a { // [MPA-1-2]
		return 3
	}
	// [MPA-1-3]
	if a && b {
		return 4
	}
	x := 5
	x++ // [MPA-1-4]
	return x
}
`

const tests = `package p

import "testing"

// [MPA-1-1]
func TestHeader(t *testing.T) {
	if n, err := header([]byte{3, 0}); n != 5 || err != nil {
		t.Error(n, err)
	}
	if _, err := header([]byte{3}); err == nil {
		t.Error("no error")
	}
}

func check(t *testing.T) {
	if free(true, false) != 3 {
		t.Error("not 3") // [MPA-1-2]
	}
}

func TestFree(t *testing.T) { check(t) }

// [MPA-1-4]
func TestOther(t *testing.T) {}

func TestLast(t *testing.T) {
	if free(false, true) != 6 {
		t.Error("not 6")
	}
}
`

func TestModule(t *testing.T) {
	root := module(t, map[string]string{"p/p.go": code, "p/p_test.go": tests})
	reg, problems, err := register.Load(root)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if got := citedPackages(reg); !slices.Equal(got, []string{"p"}) {
		t.Errorf("packages with citations: %v", got)
	}
	r, err := prepare(root, t.TempDir(), reg, "p", 2, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.judge("p", r.mutants[1:], map[string]string{"p/p.go free: without operand: a": "b says it"}, time.Time{}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, res := range f.results {
		how := "survives"
		switch {
		case res.cited:
			how = "cited"
		case res.suite:
			how = "suite"
		}
		got = append(got, fmt.Sprintf("%d %s: %s: %s %s", res.line, res.op, res.text, rowNames(res.mutant), how))
	}
	want := []string{
		"9 never: len(b) < 2: MPA-1-1 cited",
		"9 always: len(b) < 2: MPA-1-1 cited",
		"9 boundary: len(b) < 2: MPA-1-1 cited",
		"10 no error: errShort: MPA-1-1 cited",
		"12 other operator: int(b[0]) + 2: MPA-1-1 cited",
		"12 next number: 0: MPA-1-1 cited",
		"16 never: a: MPA-1-2 cited",
		"16 always: a: MPA-1-2 suite",
		"17 next number: 3: MPA-1-2 cited",
		"20 never: a && b: MPA-1-3 survives",
		"20 without operand: a: MPA-1-3 suite",
		"20 without operand: b: MPA-1-3 survives",
		"21 next number: 4: MPA-1-3 survives",
		"24 without: x++: MPA-1-4 suite",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(f.survive) != 3 || len(f.accepted) != 0 || len(f.stale) != 1 || f.cited() != 8 || f.suite() != 11 {
		t.Errorf("%d survive, %d accepted, %d stale, cited tests kill %d, all %d", len(f.survive), len(f.accepted), len(f.stale), f.cited(), f.suite())
	}
	if b, err := os.ReadFile(filepath.Join(root, "p/p.go")); err != nil || string(b) != code {
		t.Errorf("the tree was changed: %v", err)
	}

	// The page keeps what was there of other packages.
	file := filepath.Join(t.TempDir(), "page.md")
	other := figures{pkg: "q", of: 2, results: make([]result, 1)}
	other.results[0] = result{mutant: &mutant{file: "q/q.go", fn: "F", op: "never", text: "a"}}
	other.count(map[string]string{"q/q.go F: never: a": "equal"})
	for _, fs := range [][]figures{{other}, {f}, {f}} {
		if err := writePage(file, fs); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| p | 14 | 14 | 0 | 57.1 % | 78.6 % |\n| q | 2 | 1 | 1 | - | - |\n",
		"\n## p\n\n- survives: `p/p.go free: never: a && b` (MPA-1-3)\n",
		"\n## q\n\n- accepted: `q/q.go F: never: a`: equal\n",
	} {
		if strings.Count(string(text), want) != 1 {
			t.Errorf("the page lacks %q, or has it twice:\n%s", want, text)
		}
	}
	if k := readRates(file); len(k) != 1 || math.Abs(k["p"].cited-0.571)+math.Abs(k["p"].suite-0.786) > 1e-9 {
		t.Errorf("rates of the page: %v", k)
	}
}

// TestSample: a sample fails if it is worse than the page by more than chance.
func TestSample(t *testing.T) {
	for _, tc := range []struct {
		cited, suite, n int
		known           rate
		want            int
	}{
		{cited: 50, suite: 50, n: 50, known: rate{0.9, 0.95}, want: 0},
		{cited: 40, suite: 45, n: 50, known: rate{0.9, 0.95}, want: 0},
		{cited: 30, suite: 45, n: 50, known: rate{0.9, 0.95}, want: 1},
		{cited: 40, suite: 40, n: 50, known: rate{0.9, 0.95}, want: 1},
		{cited: 48, suite: 48, n: 50, want: 0},
		{cited: 44, suite: 44, n: 50, want: 1},
		{n: 0, want: 0},
	} {
		f := figures{pkg: "p", of: 100}
		for i := range tc.n {
			f.results = append(f.results, result{mutant: &mutant{}, cited: i < tc.cited, suite: i < tc.suite})
		}
		f.count(nil)
		known := map[string]rate{}
		if tc.known != (rate{}) {
			known["p"] = tc.known
		}
		var out bytes.Buffer
		if got := judgeSample(&out, []figures{f}, known); got != tc.want {
			t.Errorf("%+v: status %d: %s", tc, got, out.String())
		}
	}
}

// TestDoesNotCompile: a switch that the compiler refuses is left out with its
// line, the others stay.
func TestDoesNotCompile(t *testing.T) {
	root := module(t, map[string]string{
		"p/p.go": `package p

type bits uint8

// F does. [MPA-1-1]
func F(n uint) bits {
	if n > 3 {
		n = 3
	}
	return 1<<n | 2
}
`,
		"p/p_test.go": "package p\n\nimport \"testing\"\n\n// [MPA-1-1]\nfunc TestF(t *testing.T) {\n\tif F(2) != 6 {\n\t\tt.Fatal()\n\t}\n}\n",
	})
	reg, _, err := register.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r, err := prepare(root, t.TempDir(), reg, "p", 1, &log)
	if err != nil {
		t.Fatal(err, log.String())
	}
	if !strings.Contains(log.String(), "left out the mutants of 1 lines") || len(r.mutants) < 4 {
		t.Errorf("%d mutants are left; log:\n%s", len(r.mutants)-1, log.String())
	}
}

func TestAccepted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "accepted.txt")
	for text, want := range map[string]string{
		"# comment\n\np/p.go F: never: a > 0 -- a is never negative\n": "a is never negative",
		"p/p.go F: never: a > 0\n":                                     "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		acc, err := readAccepted(file)
		if got := acc["p/p.go F: never: a > 0"]; got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
