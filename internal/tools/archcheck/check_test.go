package main

import (
	"strings"
	"testing"
)

func TestArrows(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		why      string // part of the offence; empty if the arrow is allowed
	}{
		// codecs
		{"internal/wire/mpa", "encoding/binary", ""},
		{"internal/wire/rdmap", "m/internal/wire/ddp", ""},
		{"internal/wire/ddp", "m/internal/wire/rdmap", "no such arrow"},
		{"internal/wire/mpa", "m/iwarp", "no such arrow"},
		{"internal/wire/mpa", "m/internal/regmem", "no such arrow"},
		{"internal/wire/sdpwire", "net", "codecs and cores"},
		{"internal/wire/sdpwire", "net/netip", ""},
		{"internal/wire/iu", "os", "codecs and cores"},
		{"internal/wire/iu", "m/fcvi", "no such arrow"},
		{"internal/wire/vitcpwire", "m/vi", "no such arrow"},
		// cores
		{"internal/sdpcore", "m/internal/wire/sdpwire", ""},
		{"internal/sdpcore", "time", ""},
		{"internal/sdpcore", "net", "codecs and cores"},
		{"internal/sdpcore", "m/iwarp", "no such arrow"},
		// internal
		{"internal/frameio", "m/internal/regmem", ""},
		{"internal/frameio", "golang.org/x/sys/unix", ""},
		{"internal/regmem", "m/internal/wire/ddp", "no such arrow"},
		{"internal/queue", "m/vi", "no such arrow"},
		{"internal/queue", "m/internal/testkit", "only tests import it"},
		{"internal/queue", "m/internal/fc", "no such arrow"},
		{"internal/queue", "m/internal/wire/mpa", "no such arrow"},
		// engines
		{"iwarp", "m/internal/wire/mpa", ""},
		{"iwarp", "m/internal/queue", ""},
		{"iwarp", "m/sdp", "no such arrow"},
		{"iwarp", "m/vi", "no such arrow"},
		{"iwarp", "m/internal/fc", "no such arrow"},
		{"vi", "m/vitcp", "no such arrow"},
		{"vi", "m/fcvi", "no such arrow"},
		{"vi", "m/iwarp", "no such arrow"},
		{"internal/vitest", "m/vi", ""},
		{"internal/fc", "m/vi", "no such arrow"},
		{"internal/fc/fcip", "m/internal/fc", ""},
		// protocols
		{"sdp", "m/iwarp", ""},
		{"sdp", "m/internal/sdpcore", ""},
		{"sdp", "m/portmap", "no such arrow"},
		{"sdp", "m/vi", "no such arrow"},
		{"sdp", "m/internal/fc", "no such arrow"},
		{"iwarp", "m/internal/wire/sdpwire", "no such arrow"},
		{"vi", "m/internal/vitest", "only tests import a suite"},
		{"vitcp", "m/vi", ""},
		{"vitcp", "m/iwarp", "no such arrow"},
		{"fcvi", "m/vi", ""},
		{"fcvi", "m/internal/fc", ""},
		{"fcvi", "m/vitcp", "no such arrow"},
		{"portmap", "m/internal/frameio", ""},
		{"portmap", "m/sdp", "no such arrow"},
		{"portmap", "golang.org/x/sys/unix", ""},
		{"portmap", "golang.org/x/net/ipv4", "a library imports"},
		{"vi", "github.com/google/go-cmp/cmp", "a library imports"},
		{"sdp", "golang.org/x/sysx", "a library imports"},
		// programs
		{"cmd/viaduct", "m/sdp", ""},
		{"cmd/viaduct", "m/portmap", ""},
		{"cmd/viaduct", "m/internal/wire/sdpwire", ""},
		{"cmd/viaduct", "github.com/spf13/cobra", ""},
		{"cmd/viaduct", "m/cmd/viaduct/internal/addr", ""},
		{"sdp", "m/cmd/viaduct/internal/addr", "a program is not to be imported"},
		{"bench", "m/iwarp", ""},
		{"cmd/viaduct", "m/bench", "a program is not to be imported"},
		{"interop/siw", "m/cmd/viaduct", "a program is not to be imported"},
		{"interop/siw", "m/internal/testkit", "only tests import it"},
		{"internal/testkit", "go.uber.org/goleak", ""},
		{"internal/testkit", "m/internal/queue", "no such arrow"},
		{"internal/testkit", "github.com/spf13/cobra", "a library imports"},
		{"internal/tools/cite", "go/ast", ""},
		{"internal/tools/cite", "m/internal/wire/mpa", "no such arrow"},
		{"cmd/viaduct", "m/internal/tools/cite", "only tools import a tool"},
		{"internal/tools/cite", "m/internal/tools/register", ""},
		{"internal/tools/cite", "m/internal/tools/mutate", "no such arrow"},
		{".", "net", "the front page imports nothing"},
		{"sdp", "m", "not to be imported"},
		// places
		{"rds", "fmt", "has no place in the picture"},
		{"sdp/extra", "fmt", "has no place in the picture"},
	} {
		path := "m/" + tc.from
		if tc.from == "." {
			path = "m"
		}
		got := check("m", []pkg{{ImportPath: path, Imports: []string{tc.to}}})
		if tc.why == "" && len(got) > 0 {
			t.Errorf("%s -> %s: %q, want no offence", tc.from, tc.to, got)
		}
		if tc.why != "" && (len(got) != 1 || !strings.Contains(got[0], tc.why) || !strings.HasPrefix(got[0], tc.from)) {
			t.Errorf("%s -> %s: %q, want one offence with %q", tc.from, tc.to, got, tc.why)
		}
	}
}

func TestTestArrows(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		why      string
	}{
		{"internal/wire/mpa", "m/internal/testkit", ""},
		{"internal/wire/mpa", "pgregory.net/rapid", ""},
		{"internal/wire/mpa", "os", ""},
		{"vi", "m/vi", ""},
		{"vi", "m/fcvi", "no such arrow"},
		{"iwarp", "m/internal/wire/sdpwire", ""},
		{"sdp", "golang.org/x/net/nettest", ""},
		{"sdp", "golang.org/x/net/ipv4", "a library imports"},
		{"sdp", "github.com/spf13/cobra", "a library imports"},
		{"sdp", "m/internal/regmem", ""},
		{"sdp", "m/portmap", "no such arrow"},
		{"sdp", "m/cmd/viaduct/internal/addr", "a program is not to be imported"},
		{"cmd/viaduct", "github.com/spf13/cobra", ""},
		{"interop/siw", "m/internal/testkit", ""},
	} {
		for _, p := range []pkg{
			{ImportPath: "m/" + tc.from, TestImports: []string{tc.to}},
			{ImportPath: "m/" + tc.from, XTestImports: []string{tc.to}},
		} {
			got := check("m", []pkg{p})
			if tc.why == "" && len(got) > 0 {
				t.Errorf("test of %s -> %s: %q, want no offence", tc.from, tc.to, got)
			}
			if tc.why != "" && (len(got) != 1 || !strings.Contains(got[0], tc.why)) {
				t.Errorf("test of %s -> %s: %q, want one offence with %q", tc.from, tc.to, got, tc.why)
			}
		}
	}
}

// TestExamples: only the external tests of a package may import the packages for the examples.
func TestExamples(t *testing.T) {
	for at, paths := range inExamples {
		for _, to := range paths {
			if got := check("m", []pkg{{ImportPath: "m/" + at, XTestImports: []string{"m/" + to}}}); len(got) > 0 {
				t.Errorf("%q", got)
			}
			for _, p := range []pkg{
				{ImportPath: "m/" + at, Imports: []string{"m/" + to}},
				{ImportPath: "m/" + at, TestImports: []string{"m/" + to}},
				{ImportPath: "m/" + to, XTestImports: []string{"m/" + at, "m/sdp"}},
			} {
				if got := check("m", []pkg{p}); len(got) != 1 {
					t.Errorf("%+v: %q, want one offence", p, got)
				}
			}
		}
	}
}

func TestSameOffenceOnce(t *testing.T) {
	p := pkg{ImportPath: "m/vi", Imports: []string{"m/vitcp", "m/iwarp"}}
	got := check("m", []pkg{p, p, {ImportPath: "other/vi", Imports: []string{"m/vitcp"}}})
	if len(got) != 2 || !strings.HasPrefix(got[0], "vi -> iwarp") {
		t.Errorf("offences %q", got)
	}
}

// TestRules: each rule has a place of its own, and the tree has a package there, so that the rule
// of a removed package is removed too.
func TestRules(t *testing.T) {
	t.Chdir("../../..")
	pkgs, err := list("linux")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, p := range pkgs {
		if _, path, below := strings.Cut(p.ImportPath, "/"); !below {
			used["."] = true
		} else if r := ruleFor(path); r != nil {
			used[r.place] = true
		}
	}
	seen := map[string]bool{}
	for _, r := range rules {
		if seen[r.place] {
			t.Errorf("two rules for %s", r.place)
		}
		seen[r.place] = true
		if !used[r.place] && r.place != "capi/..." { // capi needs a build tag and a C compiler
			t.Errorf("no package for the rule of %s", r.place)
		}
	}
}

// TestList reads the package's own imports through the go command.
func TestList(t *testing.T) {
	pkgs, err := list("linux")
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) != 1 || !strings.HasSuffix(pkgs[0].ImportPath, "internal/tools/archcheck") || len(pkgs[0].Imports) < 3 {
		t.Errorf("go list says %+v", pkgs)
	}
}
