package main

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestFace: the public packages export no name with an internal type missing in known.txt, and
// together no more names than the limit.
func TestFace(t *testing.T) {
	var out bytes.Buffer
	err := run(&out, false, true, false)
	t.Log("\n" + out.String())
	if err != nil {
		t.Error(err)
	}
}

// TestPublic: every package importable by another module is counted.
func TestPublic(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-f", "{{if ne .Name \"main\"}}{{.ImportPath}}{{end}}", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.Lines(string(out)) {
		p = strings.TrimPrefix(strings.TrimSpace(p), module+"/")
		inside := slices.Contains(strings.Split(p, "/"), "internal")
		// The front page exports nothing.
		if p != "" && p != module && !inside && !slices.Contains(public, p) {
			t.Errorf("package %s can be imported and is not counted", p)
		}
	}
}

// TestCount: each exported name counts once. Fields and the members of an alias do not count. One
// name more than the limit is refused.
func TestCount(t *testing.T) {
	pkg, err := check(fakeImporter{importer.Default()}, "viaduct/vi", `package vi
import "viaduct/internal/secret"
type Alias = secret.B
type Conn struct { Field int }
func (*Conn) Method() {}
func (Conn) Value() {}
func (Conn) hidden() {}
type hidden struct{}
func (hidden) Method() {}
type Inner struct { Conn }
type Open interface { Call(); hide() }
type Level int
func (Level) String() string { return "" }
const ( One Level = iota; Two; three )
var V, w int
func F() {}
func f() {}
`)
	if err != nil {
		t.Fatal(err)
	}
	// Alias, Conn, Method, Value, Inner, Open, Call, Level, String, One, Two, V, F
	var out bytes.Buffer
	if n := count(&out, face(pkg)); n != 13 {
		t.Errorf("%d names, want 13:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "  13 vi\n") {
		t.Errorf("printed %s", out.String())
	}
	if within(limit) != nil || within(limit+1) == nil {
		t.Error("the limit is not the limit")
	}
}

// fakeImporter knows a single internal package.
type fakeImporter struct{ types.Importer }

func (f fakeImporter) Import(path string) (*types.Package, error) {
	if path != "viaduct/internal/secret" {
		return f.Importer.Import(path)
	}
	return check(f, path, "package secret\ntype T struct{}\ntype A struct{}\ntype Hidden = T\ntype B struct{ F int }\nfunc (B) M() {}")
}

func check(im types.Importer, path, src string) (*types.Package, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", src, 0)
	if err != nil {
		return nil, err
	}
	c := types.Config{Importer: im}
	return c.Check(path, fset, []*ast.File{f}, nil)
}

// TestMentions: an internal type is found anywhere in a type expression, in an alias and where a
// public alias exists, but not inside a named type.
func TestMentions(t *testing.T) {
	pkg, err := check(fakeImporter{importer.Default()}, "viaduct/pub", `package pub
import "viaduct/internal/secret"
type Public = secret.A
type Conn struct { Field secret.T; hidden secret.T; Ok Public }
func (*Conn) Method() map[string][]*secret.T { return nil }
func (*Conn) Fine(Conn) error { return nil }
type Open interface { Call(func(secret.T)) }
type List []secret.T
func F(...secret.T) {}
func G(Public, Conn, secret.A) {}
func H(secret.Hidden) {}
var V chan secret.T
const C = 1
func unexported(secret.T) {}
`)
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	for _, n := range face(pkg) {
		if len(n.internal) > 0 {
			bad = append(bad, n.path)
		}
	}
	want := []string{"pub.Conn.Field", "pub.Conn.Method", "pub.F", "pub.G", "pub.H", "pub.List", "pub.Open.Call", "pub.Public", "pub.V"}
	if slices.Sort(bad); !slices.Equal(bad, want) {
		t.Errorf("found %v, want %v", bad, want)
	}
}

func TestCompare(t *testing.T) {
	fresh, gone := compare([]string{"a", "b"}, []string{"b", "c"})
	if !slices.Equal(fresh, []string{"c"}) || !slices.Equal(gone, []string{"a"}) {
		t.Errorf("fresh %v, gone %v", fresh, gone)
	}
}

// TestDocFaults: a comment may name exported names of the public packages, but no removed or
// internal names.
func TestDocFaults(t *testing.T) {
	other, err := check(fakeImporter{importer.Default()}, "viaduct/other", `package other
type Server struct { Addr string }
func (*Server) Close() {}
`)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := check(fakeImporter{importer.Default()}, "viaduct/pub", `package pub
type Conn struct { Field int }
func (*Conn) Close() {}
func Dial() {}
`)
	if err != nil {
		t.Fatal(err)
	}
	g := glossary{pkg: pkg, public: map[string]*types.Package{"pub": pkg, "other": other}, internal: []string{"secret"}}
	for text, want := range map[string]int{
		"See [Dial], [Conn.Close], [*Conn], [other.Server.Addr], [net.Conn] and Conn.Field.":  0,
		"The error of Conn.Close; see docs/Conn.md and README.md [SDP-9-1] [D-01] [VIA 6.3].": 0,
		"Written as [Gone].":            1,
		"Written as [Conn.Gone].":       1,
		"Written as [other.Gone].":      1,
		"Written as Conn.Gone.":         1,
		"Written as other.Server.Gone.": 1,
		"Of type secret.Type.":          1,
	} {
		if got := g.faults(comment{"here", text, true}); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}
