package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"viaduct/internal/tools/register"
)

// tree writes a module with the given files and a small matrix for every document, with rows 1 to 4
// of sections 1 and 2.3. It returns the root.
func tree(t *testing.T, files map[string]string) string {
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
		var b strings.Builder
		if len(d.Key) == 1 {
			for n := range 4 {
				fmt.Fprintf(&b, "### %s-%02d Decision %d\n- Gap: one\n\n", d.Key, n+1, n+1)
			}
		} else {
			title, source := "", "" // MPA has a column for the source
			if d.Key == "MPA" {
				title, source = " source |", " derived |"
			}
			fmt.Fprintf(&b, "\n| id |%s level | requirement | who | how to observe from outside |\n|---|---|---|---|---|\n", title)
			for _, sec := range []string{"1", "2.3"} {
				for n := range 4 {
					fmt.Fprintf(&b, "| %s-%s-%d |%s MUST | Rule %d. | both | Wire: seen. |\n", d.Key, sec, n+1, source, n+1)
				}
			}
			fmt.Fprintf(&b, "| %s-9-1 |%s MAY | Not for us. | both | n/a: no such layer. |\n", d.Key, strings.Replace(source, "derived", "standard", 1))
		}
		matrix[d.File] += b.String()
	}
	for name, text := range matrix {
		put("docs/requirements/"+name, text)
	}
	put("docs/requirements/exceptions.md", "")
	put("go.mod", "module m\n")
	for name, text := range files {
		put(name, text)
	}
	return root
}

func load(t *testing.T, root string) (*register.Register, []string) {
	t.Helper()
	g, problems, err := register.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	return g, problems
}

func TestTags(t *testing.T) {
	for _, tc := range []struct {
		comment string
		rows    []string // cited
		problem string   // part of the only complaint
	}{
		{"nothing [here] or [T any] or [RFC 5044]", nil, ""},
		{"one [MPA-1-2].", []string{"MPA-1-2"}, ""},
		{"two [MPA-1-2] [SDP-2.3-1]", []string{"MPA-1-2", "SDP-2.3-1"}, ""},
		{"one pair [MPA-1-2, SDP-2.3-1; D-02]", []string{"D-02", "MPA-1-2", "SDP-2.3-1"}, ""},
		{"run [SDP-2.3-2..4]", []string{"SDP-2.3-2", "SDP-2.3-3", "SDP-2.3-4"}, ""},
		{"run [SDP-2.3-2..SDP-2.3-3]", []string{"SDP-2.3-2", "SDP-2.3-3"}, ""},
		{"run of decisions [I-02..03]", []string{"I-02", "I-03"}, ""},
		{"short [SDP-2.3-1, -3]", []string{"SDP-2.3-1", "SDP-2.3-3"}, ""},
		{"short [SDP-2.3-1/-3] [VIT-1-1/2]", []string{"SDP-2.3-1", "SDP-2.3-3", "VIT-1-1", "VIT-1-2"}, ""},
		{"section [SDP 9.5.1] and [MPA 7.1.2 deviates] why", nil, ""},
		{"section and row [SDP 9.5.1, SDP-1-1]", []string{"SDP-1-1"}, ""},
		{"no row [MPA-1-9]", nil, "MPA-1-9 names nothing"},
		{"no number [MPA-1]", nil, "MPA-1 names nothing"},
		{"run too long [MPA-1-3..5]", []string{"MPA-1-3", "MPA-1-4"}, "MPA-1-5 names nothing"},
		{"run backwards [MPA-1-3..2]", nil, "names nothing"},
		{"run across sections [MPA-1-3..MPA-2.3-4]", nil, "from one section into another"},
		{"decision not padded [D-2]", nil, "D-2 names nothing"},
		{"unknown key [VITCP-1-1]", nil, "no document has the key VITCP"},
		{"no section [SDP the draft]", nil, `"the" is not a section`},
	} {
		t.Run(tc.comment, func(t *testing.T) {
			g, problems := load(t, tree(t, map[string]string{"p/p.go": "package p\n\n// F does.\n// " + tc.comment + "\nfunc F() {}\n"}))
			var got []string
			for id, r := range g.ByID {
				if len(r.Code) > 0 {
					got = append(got, id)
				}
				if len(r.Tests) > 0 {
					t.Errorf("%s counts as tested", id)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.rows) {
				t.Errorf("cited %v, want %v", got, tc.rows)
			}
			switch {
			case tc.problem == "" && len(problems) > 0:
				t.Errorf("complaints: %q", problems)
			case tc.problem != "" && (len(problems) != 1 || !strings.Contains(problems[0], tc.problem) || !strings.HasPrefix(problems[0], "p/p.go:4: ")):
				t.Errorf("complaints %q, want one with %q at p/p.go:4", problems, tc.problem)
			}
		})
	}
}

func TestPlaces(t *testing.T) {
	g, problems := load(t, tree(t, map[string]string{
		"p/p.go": `package p

// [MPA-1-1] stands alone.

// [DDP-2.3-1] [DDP-2.3-2]

// N is a name of something below it.
type N int

const (
	C1, C2 = 1, 2
	C3     = 3

	// C2 [DDP-2.3-3],
	// C3 [DDP-2.3-1] [DDP-2.3-4].
)

// T is a type. [MPA-1-2]
type T struct {
	f int // [MPA-1-3]
}

const (
	a = 1 // [DDP-1-1]
	b = 2 // [DDP-1-2]
)

// M does. [MPA-1-4]
func (t *T) M() {
	_ = "[DDP-1-3] in a string is no citation"
} // [DDP-1-4]
`,
		"p/p_test.go": `package p

import "testing"

// [MPA-1-1]
func TestMPA_1(t *testing.T) {
	t.Run("MPA-1-2", func(t *testing.T) {})
	t.Run("MPA-1-3 D-01 in detail DDP-1-1", func(t *testing.T) {})
	_ = "see MPA-1-4"
	t.Errorf("got %d [SDP-2.3-4]", 1)
}

// [SDP-1-2]
func helper() {}

var table = []string{
	"SDP-1-3 in a case",
}

// [SDP-1-4]
func (fixture) TestNothing() {}
`,
		"interop/siw/main.go":        "package main\n\n// [RDMAP-1-1]\nfunc main() {}\n",
		"p/ptest/suite.go":           "package ptest\n\n// [RDMAP-1-2]\nfunc All() {}\n",
		"p/ptest/mem/mem.go":         "package mem // [RDMAP-1-3]\n",
		"p/ptest/mem/mem_test.go":    "package mem\n\n// [RDMAP-1-4]\nfunc TestMem() {}\n",
		"p/test/all.c":               "/* [MPA-1-4] */\nint x;\n\nstatic void first(int a,\n\tint b) {\n\tok(1); /* [MPA-1-4] [DDP-1-1] */\n\tif (a) {\n\t}\n}\n\nint main(void) {\n\tok(2, \"[DDP-1-2]\"); // [DDP-1-3]\n}\n",
		"p/c/lib.c":                  "/* [MPA-99-99] */\n",
		"cmd/msgfake/fake.go":        "package msgfake // [RDMAP-1-3]\n",
		"internal/testkit/wire.go":   "package testkit // [RDMAP-2.3-1]\n",
		"p/testdata/x.go":            "package x // [MPA-99-99]\n",
		"internal/tools/cite/x.go":   "package x // [MPA-99-99]\n",
		".hidden/x.go":               "package x // [MPA-99-99]\n",
		"p/notgo.txt":                "[MPA-99-99]",
		"p/generic.go":               "package p\n\ntype G[K, V any] struct{}\n\nfunc (*G[K, V]) N() {\n\t// [SDP-1-1]\n}\n",
		"docs/requirements/notes.md": "[MPA-99-99]",
	}))
	if len(problems) > 0 {
		t.Errorf("complaints: %q", problems)
	}
	for id, want := range map[string][2][]register.Place{
		"MPA-1-1":   {{{File: "p/p.go", Decl: ""}}, {{File: "p/p_test.go", Decl: "TestMPA_1"}}},
		"MPA-1-2":   {{{File: "p/p.go", Decl: "T"}}, {{File: "p/p_test.go", Decl: "TestMPA_1"}}},
		"MPA-1-3":   {{{File: "p/p.go", Decl: "T"}}, {{File: "p/p_test.go", Decl: "TestMPA_1"}}},
		"MPA-1-4":   {{{File: "p/p.go", Decl: "T.M"}}, {{File: "p/test/all.c"}, {File: "p/test/all.c", Decl: "first"}}},
		"DDP-1-1":   {{{File: "p/p.go", Decl: "a"}}, {{File: "p/test/all.c", Decl: "first"}}},
		"DDP-1-2":   {{{File: "p/p.go", Decl: "b"}}, nil},
		"DDP-1-3":   {nil, {{File: "p/test/all.c", Decl: "main"}}},
		"DDP-2.3-1": {{{File: "p/p.go", Decl: "N"}, {File: "p/p.go", Decl: "C3"}}, nil},
		"DDP-2.3-2": {{{File: "p/p.go", Decl: "N"}}, nil},
		"DDP-2.3-3": {{{File: "p/p.go", Decl: "C2"}}, nil},
		"DDP-2.3-4": {{{File: "p/p.go", Decl: "C3"}}, nil},
		"DDP-1-4":   {{{File: "p/p.go", Decl: "T.M"}}, nil},
		"D-01":      {nil, {{File: "p/p_test.go", Decl: "TestMPA_1"}}},
		"RDMAP-1-1": {nil, {{File: "interop/siw/main.go", Decl: "main"}}},
		"RDMAP-1-2": {nil, {{File: "p/ptest/suite.go", Decl: "All"}}},
		"SDP-2.3-4": {nil, {{File: "p/p_test.go", Decl: "TestMPA_1"}}},
		"SDP-1-2":   {nil, {{File: "p/p_test.go", Decl: "helper", Helper: true}}},
		"SDP-1-3":   {nil, {{File: "p/p_test.go", Decl: "table"}}},
		"SDP-1-4":   {nil, {{File: "p/p_test.go", Decl: "fixture.TestNothing", Helper: true}}},
		"RDMAP-1-3": {nil, nil},
		"RDMAP-1-4": {nil, {{File: "p/ptest/mem/mem_test.go", Decl: "TestMem"}}},
		"SDP-1-1":   {{{File: "p/generic.go", Decl: "G.N"}}, nil},
	} {
		r := g.ByID[id]
		if !slices.Equal(r.Code, want[0]) || !slices.Equal(r.Tests, want[1]) {
			t.Errorf("%s: code %v tests %v, want %v", id, r.Code, r.Tests, want)
		}
	}
	if got := len(g.ByID["RDMAP-1-3"].Fakes); got != 2 {
		t.Errorf("%d fakes cite RDMAP-1-3, want 2", got)
	}
	for id, want := range map[string]string{"RDMAP-1-3": "no code but a fake, no test", "RDMAP-1-4": "no code", "RDMAP-2.3-1": "no code but a fake, no test"} {
		if got := g.ByID[id].Lacks(); got != want {
			t.Errorf("%s lacks %q, want %q", id, got, want)
		}
	}
	var out bytes.Buffer
	printHelpers(g, &out, func(string) bool { return true })
	if !strings.Contains(out.String(), "SDP-1-2            p/p_test.go helper  (nowhere else)") || !strings.Contains(out.String(), "2 rows are cited in helpers of test files, 2 of them in no test") {
		t.Errorf("helpers:\n%s", out.String())
	}
}

func TestWrongNames(t *testing.T) {
	_, problems := load(t, tree(t, map[string]string{
		"p/p_test.go": "package p\n\nvar names = []string{\n\t\"MPA-1-7\",\n\t\"D-77\",\n\t\"HTTP-1-7\",\n}\n",
		"p/bad.go":    "package p\n\nfunc {\n",
	}))
	want := []string{`p/bad.go: does not parse`, `p/p_test.go:4: "MPA-1-7"`, `p/p_test.go:5: "D-77"`}
	if len(problems) != len(want) {
		t.Fatalf("complaints %q", problems)
	}
	for i, w := range want {
		if !strings.HasPrefix(problems[i], w) {
			t.Errorf("complaint %q, want %q", problems[i], w)
		}
	}
}

func TestExceptions(t *testing.T) {
	root := tree(t, map[string]string{
		"docs/requirements/exceptions.md": `# Title

    ID: reason
MPA-1-1: n/a: no such hardware.
- MPA-1-2..3: deviates (I-01, MPA-1-4): something else, for a reason. Peer: nothing.
MPA-1-4: untested: only a profile shows it.
D-03: n/a.
`,
		"p/p.go": "package p // [MPA-1-4]\n",
	})
	g, problems := load(t, root)
	if len(problems) > 0 {
		t.Errorf("complaints: %q", problems)
	}
	for id, lacks := range map[string]string{
		"MPA-1-1": "", "MPA-1-2": "", "MPA-1-3": "", "MPA-1-4": "", "D-03": "", "MPA-9-1": "",
		"MPA-2.3-1": "no code, no test", "D-02": "no code, no test",
	} {
		if got := g.ByID[id].Lacks(); got != lacks {
			t.Errorf("%s lacks %q, want %q", id, got, lacks)
		}
	}
	for text, want := range map[string]string{
		"MPA-1-8: n/a: x.":                               "exceptions.md:1: MPA-1-8 names nothing",
		"MPA-1-2..9: n/a: x.":                            "exceptions.md:1: MPA-1-5 names nothing",
		"MPA-1-1: deviates (I-01): as it likes.":         `exceptions.md:1: MPA-1-1: a deviation reads`,
		"MPA-1-1: deviates: as it likes. Peer: nothing.": `exceptions.md:1: MPA-1-1: a deviation reads`,
		"MPA-1-1: deviates (I-77): so. Peer: nothing.":   `exceptions.md:1: MPA-1-1: (I-77) names no decision`,
		"MPA-1-1: because I may.":                        `exceptions.md:1: the reason for MPA-1-1 begins with "because"`,
	} {
		_, problems := load(t, tree(t, map[string]string{"docs/requirements/exceptions.md": text + "\n"}))
		if len(problems) != 1 || !strings.HasPrefix(problems[0], want) {
			t.Errorf("%q: complaints %q, want %q", text, problems, want)
		}
	}
	if got := func() string {
		g, _ := load(t, tree(t, map[string]string{"docs/requirements/exceptions.md": "MPA-1-4: untested: so.\n"}))
		return g.ByID["MPA-1-4"].Lacks()
	}(); got != "no code" {
		t.Errorf("an untested row without code lacks %q", got)
	}
}

func TestBadMatrix(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"twice": {"| id | level | requirement | who | how to observe |\n| SDP-1-1 | MUST | A. | b | c |\n| SDP-1-1 | MUST | A. | b | c |\n", "SDP-1-1 stands twice"},
		"cells": {"| id | level | requirement | who | how to observe |\n| SDP-1-1 | MUST | A | B. | b | c |\n", "6 cells under a header of 5"},
		"empty": {"# nothing\n", "no rows with key SDP"},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, map[string]string{"docs/requirements/sdp-requirements.md": tc.text})
			_, err := register.Read(filepath.Join(root, "docs", "requirements"))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestRun(t *testing.T) {
	root := tree(t, map[string]string{
		"p/p.go":      "package p\n\n// F does.\nfunc F() {} // [MPA-1-1] [MPA-1-2]\n",
		"p/p_test.go": "package p\n\n// [MPA-1-1]\nfunc TestF() {}\n",
	})
	cite := func(args ...string) (int, string, string) {
		var out, err bytes.Buffer
		code := run(append([]string{"-C", root}, args...), &out, &err)
		return code, out.String(), err.String()
	}
	code, out, _ := cite("-only", "MPA")
	for _, want := range []string{"sources of MPA (RFC 5044): 8 derived, 1 standard", "MPA-1-2            no test", "MPA-1-3            no code, no test", "MPA (RFC 5044)"} {
		if !strings.Contains(out, want) {
			t.Errorf("report lacks %q:\n%s", want, out)
		}
	}
	if code != 0 || strings.Contains(out, "MPA-1-1 ") || strings.Contains(out, "SDP-1-1") || strings.Contains(out, "MPA-9-1") {
		t.Errorf("exit %d, report:\n%s", code, out)
	}
	if code, out, _ := cite("-summary", "-only", "MPA,D"); code != 0 || strings.Count(out, "\n") != 5 {
		t.Errorf("summary: exit %d:\n%s", code, out)
	}
	if code, _, _ := cite("-only", "NOPE"); code != 2 {
		t.Errorf("unknown key: exit %d", code)
	}

	if code, _, msg := cite("-check"); code != 1 || !strings.Contains(msg, "docs/conformance.md: stale") {
		t.Errorf("-check before -write: exit %d: %s", code, msg)
	}
	if code, _, msg := cite("-write"); code != 0 {
		t.Fatalf("-write: exit %d: %s", code, msg)
	}
	if code, _, msg := cite("-check"); code != 0 {
		t.Errorf("-check after -write: exit %d: %s", code, msg)
	}
	index, err := os.ReadFile(filepath.Join(root, "docs/conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| [MPA (RFC 5044)](conformance/iwarp-requirements.md#mpa-rfc-5044) | 9 | 1 | 0 | 1 | 0 | 7 |",
		"Sources of the rows of MPA (RFC 5044): 8 derived, 1 standard.",
	} {
		if !strings.Contains(string(index), want) {
			t.Errorf("index lacks %q:\n%s", want, index)
		}
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/conformance/iwarp-requirements.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| MPA-1-1 | derived | MUST | Rule 1. | [p/p.go](../../p/p.go) `F` | [p/p_test.go](../../p/p_test.go) `TestF` |",
		"| MPA-1-2 | derived | MUST | Rule 2. | [p/p.go](../../p/p.go) `F` | **open** |",
		"| MPA-1-3 | derived | MUST | Rule 3. | **open** | **open** |",
		"| MPA-9-1 | standard | MAY | Not for us. | n/a: no such layer. |  |",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("page lacks %q", want)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "p/p.go"), []byte("package p\n\n// F does. [MPA-1-1]\nfunc F() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, msg := cite("-check"); code != 1 || !strings.Contains(msg, "docs/conformance/iwarp-requirements.md: stale") || strings.Contains(msg, "sdp-requirements") {
		t.Errorf("-check after a change: exit %d: %s", code, msg)
	}
}

// TestModule runs the tool on the module itself: the matrices must be readable. The command checks
// that every citation resolves, because the command's complete list is more useful than the first
// failure of a test.
func TestModule(t *testing.T) {
	root, err := register.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	g, err := register.Read(filepath.Join(root, "docs", "requirements"))
	if err != nil {
		t.Fatal(err)
	}
	problems, err := g.ReadExceptions(filepath.Join(root, "docs", "requirements", "exceptions.md"))
	if err != nil || len(problems) > 0 {
		t.Errorf("exceptions: %v %q", err, problems)
	}
	for _, d := range g.Docs {
		next := make(map[string]int)
		for _, r := range d.Rows {
			if next[r.Section]++; r.Number != next[r.Section] {
				t.Errorf("%s stands where number %d is expected", r.ID, next[r.Section])
				next[r.Section] = r.Number
			}
		}
	}
}

// TestDocTags: a citation is a problem in a comment shown by go doc, and in no other comment.
func TestDocTags(t *testing.T) {
	const good = `// Package p is one.
package p

// The package as a whole keeps [MPA-1-1].

// [MPA-1-2]

// K is.
type K int

// unexported has [MPA-1-3].
type unexported struct{}

// Do is not shown. [MPA-1-4]
func (unexported) Do() {}

// S is.
type S struct { // [MPA-2.3-1]
	F int // of S
	g int // [MPA-2.3-2]

	// F [MPA-2.3-3].
}

// F does.
func (s *S) F() { // [MPA-2.3-4]
	// [SDP-1-1]
}

// A number, and [other things] in brackets, of [S.F]. [X-1]
const A = 1
`
	check := func(text string) []string {
		root := tree(t, map[string]string{"p/p.go": text, "p/p_test.go": "package p\n\n// X is. [MPA-1-1]\nfunc X() {}\n", "internal/q.go": "package internal\n"})
		g, _, err := register.Load(root)
		if err != nil {
			t.Fatal(err)
		}
		problems, err := docTags(g, root)
		if err != nil {
			t.Fatal(err)
		}
		return problems
	}
	if got := check(good); len(got) > 0 {
		t.Errorf("%q", got)
	}
	for _, at := range []string{"Package p is one.", "K is.", "S is.", "of S", "F does.", "A number"} {
		if got := check(strings.Replace(good, at, at+" [SDP-1-2]", 1)); len(got) != 1 || !strings.Contains(got[0], "[SDP-1-2] is in a comment") || !strings.HasPrefix(got[0], "p/p.go:") {
			t.Errorf("%s: %q", at, got)
		}
	}
}
