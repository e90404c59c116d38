package main

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"testing"
)

// TestFace: no public package has come to export more names of internal types
// than known.txt lists.
func TestFace(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out, false, true, false); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// fakeImporter knows one internal package.
type fakeImporter struct{ types.Importer }

func (f fakeImporter) Import(path string) (*types.Package, error) {
	if path != "viaduct/internal/secret" {
		return f.Importer.Import(path)
	}
	return check(f, path, "package secret\ntype T struct{}\ntype A struct{}\ntype Hidden = T")
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

// TestMentions: an internal type is found wherever a name speaks it, unless a
// public alias names it, and not inside a named type.
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
	for _, n := range face(pkg, aliased([]*types.Package{pkg})) {
		if len(n.internal) > 0 {
			bad = append(bad, n.path)
		}
	}
	want := []string{"pub.Conn.Field", "pub.Conn.Method", "pub.F", "pub.H", "pub.List", "pub.Open.Call", "pub.V"}
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
