package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/tools/register"
)

// module writes a module whose package p keeps the rows MPA-1-1 to MPA-1-9, and returns the
// module's root.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	testkit.Long(t, "30 s together with the others that compile mutants")
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

// TestDeliberateFaults: code reached only by a deliberate fault has no mutants.
func TestDeliberateFaults(t *testing.T) {
	root := module(t, map[string]string{"p/p.go": `package p

var fault faults

type faults struct{}

func (faults) On(string) bool { return false }

// pick picks. [MPA-1-1]
func pick(a, b bool) int {
	if fault.On("x") && a {
		return 1
	} else if a {
		return 2
	}
	switch {
	case fault.On("y"):
		return 3
	case b && !fault.On("z"):
		return 4
	}
	if a || b && fault.On("z") {
		return 5
	}
	return 6
}
`})
	reg, problems, err := register.Load(root)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	r, err := prepare(root, t.TempDir(), reg, "p", 2, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range r.mutants[1:] {
		got = append(got, fmt.Sprintf("%d %s: %s", m.line, m.op, m.text))
	}
	want := []string{
		"13 never: a", "13 always: a", "14 next number: 2",
		"19 never: b && !fault.On(\"z\")", "19 without operand: b", "20 next number: 4",
		"22 always: a || b && fault.On(\"z\")", "22 without operand: a", "23 next number: 5", "25 next number: 6",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

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
	f, err := r.judge("p", r.mutants[1:], time.Time{}, func(result) {}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	f.count(map[string]string{"p/p.go free: without operand: a": "b says it"})
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

	// Run the cited tests alone; results are reported at once.
	r.citedOnly = true
	told := make(map[string]bool)
	g, err := r.judge("p", r.mutants[1:], time.Time{}, func(res result) { told[res.listing()+" "+res.how()] = true }, io.Discard)
	g.count(nil)
	if err != nil || g.cited() != 8 || g.suite() != 8 {
		t.Errorf("cited tests kill %d, %d in all; %v", g.cited(), g.suite(), err)
	}
	if len(told) != len(got) || !told["p/p.go:24: p/p.go free: without: x++ [MPA-1-4] survives"] || !told["p/p.go:17: p/p.go free: next number: 3 [MPA-1-2] cited: p TestFree"] {
		t.Errorf("told of %v", told)
	}

	// Mutants in the notes of a run are not tried again; survivors are.
	name := filepath.Join(t.TempDir(), "notes")
	for range 2 {
		book, err := openNotes(name)
		if err != nil {
			t.Fatal(err)
		}
		done, todo := book.split(r.mutants[1:], nil)
		for _, res := range f.results {
			if i := slices.IndexFunc(done, func(d result) bool { return d.mutant == res.mutant }); len(done) > 0 && res.cited != (i >= 0 && done[i] == res) {
				t.Errorf("%s: %+v, noted %d", res.listing(), res, i)
			}
			if err := book.add(res); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(todo); len(done)+n != 14 || n != 14 && n != 6 || n == 14 != (len(book.seen) == 0) {
			t.Errorf("%d are done, %d are to be tried", len(done), n)
		}
		io.WriteString(book.f, "cited\tp TestFree\tp/p.go:20 cut sho") // ended here
		book.f.Close()
	}

	// The page keeps the sections of other packages.
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
		"\n## p\n\n- survives: `p/p.go free: never: a && b`\n  (MPA-1-3)\n",
		"\n## q\n\n- accepted: `q/q.go F: never: a`:\n  equal\n",
	} {
		if strings.Count(string(text), want) != 1 {
			t.Errorf("the page lacks %q, or has it twice:\n%s", want, text)
		}
	}
	p := readKnown(file)["p"]
	if math.Abs(p.cited-0.571) > 1e-9 || p.run != 14 || !p.all || len(p.missed) != 6 || !p.missed["p/p.go free: without: x++"] || !p.missed["p/p.go free: never: a && b"] {
		t.Errorf("the page is read as %+v", p)
	}
}

// TestSample: a sample fails if the cited tests miss more than the page says,
// and chance does not explain it.
func TestSample(t *testing.T) {
	missed := make(map[string]bool)
	for i := range 20 {
		missed[fmt.Sprintf("p/p.go F: never: m%d", i)] = true
	}
	for _, tc := range []struct {
		name   string
		n, old int // missed mutants in the sample, and those of them on the page
		page   map[string]known
		want   int
	}{
		{name: "none missed", n: 0, page: map[string]known{"p": {cited: 0.9, run: 300, all: true}}},
		{name: "all known, listed ones", n: 20, old: 20, page: map[string]known{"p": {cited: 0.9, run: 300, all: true, missed: missed}}},
		{name: "all known, some changed", n: 23, old: 20, page: map[string]known{"p": {cited: 0.9, run: 300, all: true, missed: missed}}},
		{name: "all known, many others", n: 26, old: 20, page: map[string]known{"p": {cited: 0.9, run: 300, all: true, missed: missed}}, want: 1},
		{name: "by rate, as expected", n: 8, page: map[string]known{"p": {cited: 0.9, run: 250}}},
		{name: "by rate, too many", n: 14, page: map[string]known{"p": {cited: 0.9, run: 250}}, want: 1},
		{name: "by rate, found with few", n: 14, page: map[string]known{"p": {cited: 0.9, run: 30}}},
		{name: "no figures, as wanted", n: 5},
		{name: "no figures, worse", n: 14, want: 1},
	} {
		f := figures{pkg: "p", of: 300}
		for i := range 50 {
			m := &mutant{file: "p/p.go", fn: "F", op: "never", text: fmt.Sprintf("m%d", i)}
			if i >= tc.old {
				m.text += " new"
			}
			f.results = append(f.results, result{mutant: m, cited: i >= tc.n, suite: i%2 == 0 || i >= tc.n})
		}
		f.count(nil)
		var out bytes.Buffer
		if got := judgeSample(&out, []figures{f}, tc.page); got != tc.want {
			t.Errorf("%s: status %d: %s", tc.name, got, out.String())
		}
	}
	if judgeSample(io.Discard, []figures{{pkg: "p"}}, nil) != 0 {
		t.Error("a sample of nothing fails")
	}
}

// TestLate: a hanging mutant is killed with the processes started by the test. A test late once, as
// on a loaded machine, is repeated. Rapid leaves no file in the tree.
func TestLate(t *testing.T) {
	root := module(t, map[string]string{
		"p/p.go": `package p

// Count counts. [MPA-1-1]
func Count(n int) (c int) {
	for n > 0 {
		n--
		c++
	}
	return c
}

func Late(b bool) bool {
	if b { // [MPA-1-2]
		return true
	}
	return true
}
`,
		"p/p_test.go": `package p

import (
	"flag"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

var noFailFile = flag.Bool("rapid.nofailfile", false, "as rapid has it")

// [MPA-1-1]
func TestCount(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	os.WriteFile("pid", []byte(strconv.Itoa(c.Process.Pid)), 0o600)
	if Count(3) != 3 {
		t.Error("not 3")
	}
	c.Process.Kill()
	c.Wait()
	if !*noFailFile {
		t.Error("a file might be left")
	}
}

// [MPA-1-2]
func TestLate(t *testing.T) {
	if Late(true); os.Getenv("MUTANT") == "" {
		return
	}
	if _, err := os.Stat("late"); err != nil {
		os.WriteFile("late", nil, 0o600)
		time.Sleep(time.Minute)
	}
}
`,
	})
	r := prepared(t, root)
	r.patience = 500 * time.Millisecond
	try := func(key string) result {
		i := slices.IndexFunc(r.mutants[1:], func(m *mutant) bool { return m.key() == key })
		if i < 0 {
			t.Fatalf("no mutant %s", key)
		}
		return r.try(r.mutants[1+i])
	}
	if res := try("p/p.go Count: without: n--"); !res.cited {
		t.Error("a mutant that hangs survives")
	}
	b, err := os.ReadFile(filepath.Join(root, "p/pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	// The killed process may need a moment to end.
	for end := time.Now().Add(testkit.Patience); runs(pid) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if runs(pid) {
		t.Errorf("process %d of a test that was stopped still runs", pid)
	}
	if res := try("p/p.go Late: never: b"); res.suite {
		t.Errorf("one late test killed a mutant that changes nothing: %s", res.by)
	}
	if _, err := os.Stat(filepath.Join(root, "p/late")); err != nil {
		t.Error("the test was not late")
	}
}

// runs reports whether a process runs. A zombie does not.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// TestSuites: the tests of a command count for a library package only if they cite the row.
func TestSuites(t *testing.T) {
	cmdTests := "package main\n\nimport (\n\t\"m/p\"\n\t\"testing\"\n)\n\n" +
		"// [MPA-1-1]\nfunc TestCited(t *testing.T) { p.F(1) }\n\nfunc TestOther(t *testing.T) {\n\tif p.F(4) != 3 {\n\t\tt.Fatal()\n\t}\n}\n"
	root := module(t, map[string]string{
		"p/p.go":          "package p\n\n// F does. [MPA-1-1]\nfunc F(n int) int {\n\tif n > 3 {\n\t\tn = 3\n\t}\n\treturn n\n}\n",
		"p/p_test.go":     "package p\n",
		"cmd/c/c.go":      "package main\n\nfunc main() {}\n",
		"cmd/c/c_test.go": cmdTests,
		"q/q_test.go":     strings.Replace(cmdTests, "package main", "package q", 1),
		"q/q.go":          "package q\n",
	})
	r := prepared(t, root)
	if got := r.suites(r.mutants[1]); !slices.Equal(got, []string{"p", "q"}) {
		t.Errorf("suites asked: %v", got)
	}
	if got := r.citedTests(r.mutants[1]); len(got) != 2 {
		t.Errorf("cited tests: %v", got)
	}
	r.own = true
	if got := r.citedTests(r.mutants[1]); len(got) != 0 {
		t.Errorf("cited tests of the package itself: %v", got)
	}
}

// TestDoesNothing: the values of a clause without effect make no difference and have no mutants.
func TestDoesNothing(t *testing.T) {
	root := module(t, map[string]string{
		"p/p.go": `package p

// F does. [MPA-1-1]
func F(n, m int) (c int) {
	switch n {
	case 1:
	case 2:
		c = m
	case 3, 4:
	}
	switch n {
	case 5:
	default:
		c = m
	}
	return c
}
`,
		"p/p_test.go": "package p\n",
	})
	r := prepared(t, root)
	var got []string
	for _, m := range r.mutants[1:] {
		if m.op == "next number" {
			got = append(got, m.text)
		}
	}
	if want := []string{"1", "2", "5"}; !slices.Equal(got, want) {
		t.Errorf("mutants of %v, want %v", got, want)
	}
}

// TestTexts: the content of a text has no mutants, whichever function formats it; the existence of
// an error has a mutant.
func TestTexts(t *testing.T) {
	root := module(t, map[string]string{
		"p/p.go": `package p

import "fmt"

func wrongf(format string, args ...any) error { return fmt.Errorf(format, args...) }

func half(n ...int) int { return len(n) / 2 }

// F does. [MPA-1-1]
func F(n int) (int, error) {
	if n < 0 {
		return 0, wrongf("%d is %d", n+1, 7)
	}
	return half(3, n), nil
}
`,
		"p/p_test.go": "package p\n",
	})
	r := prepared(t, root)
	var got []string
	for _, m := range r.mutants[1:] {
		got = append(got, m.op+": "+m.text)
	}
	want := []string{"never: n < 0", "always: n < 0", "boundary: n < 0", `no error: wrongf("%d is %d", n+1, 7)`, "next number: 3"}
	if !slices.Equal(got, want) {
		t.Errorf("mutants %q, want %q", got, want)
	}
}

// TestNextFlag: for a flag of a named set of bits the next bit is tried, since the lowest may be
// set anyway.
func TestNextFlag(t *testing.T) {
	root := module(t, map[string]string{
		"p/p.go": `package p

type Status uint8

const Done, Late, Lost Status = 1, 4, 128

// F does. [MPA-1-1]
func F(n int) Status {
	var s Status
	if n > 1 {
		s = Late
	}
	if n > 2 {
		s = Lost
	}
	return s | Done
}
`,
		"p/p_test.go": `package p

import "testing"

// [MPA-1-1]
func TestF(t *testing.T) {
	if F(2) != Done|Late || F(3) != Done|Lost || F(1) != Done {
		t.Error("wrong")
	}
}
`,
	})
	r := prepared(t, root)
	n := 0
	for _, m := range r.mutants[1:] {
		if m.op == "next flag" {
			n++
			if !r.try(m).cited {
				t.Errorf("%s survives", m.key())
			}
		}
	}
	if n != 2 {
		t.Errorf("%d mutants of flags, want 2", n)
	}
}

// TestDoesNotCompile: if a mutant does not compile, all mutants of the line are left out, and the
// mutants of other lines are kept.
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

// TestDraw: adding and removing mutants does not change which other mutants are in the sample of a
// seed. Another seed draws other mutants.
func TestDraw(t *testing.T) {
	var all []*mutant
	for i := range 100 {
		all = append(all, &mutant{file: "p/p.go", fn: "F", op: "never", text: fmt.Sprint("m", i)})
	}
	order := func(ms []*mutant, seed uint64) []*mutant {
		ms = slices.Clone(ms)
		draw(ms, seed)
		return ms
	}
	first := order(all, 1)
	some := slices.DeleteFunc(slices.Clone(first), func(m *mutant) bool { return m == all[7] || m == all[8] })
	if got := order(slices.Concat(all[9:], all[:7]), 1); !slices.Equal(got, some) {
		t.Error("two mutants less, and another order of the rest")
	}
	if slices.Equal(order(all, 2), first) || slices.Equal(all, first) {
		t.Error("not at random")
	}
}

// prepared returns the run for package p of the module in root.
func prepared(t *testing.T, root string) *runner {
	t.Helper()
	reg, _, err := register.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	r, err := prepare(root, t.TempDir(), reg, "p", 1, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
