package viaduct_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

// docLink is a link to a method or field of the same package, such as [Status.Err].
var docLink = regexp.MustCompile(`\[\*?([A-Z]\w*)\.([A-Z]\w*)\]`)

// TestDocLinks: what the comments of the public packages link to exists: go doc names
// nothing that was removed.
func TestDocLinks(t *testing.T) {
	for _, dir := range []string{"vi", "vitcp", "fcvi", "iwarp", "sdp", "portmap", "registry", "samehost"} {
		notTest := func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }
		pkgs, err := parser.ParseDir(token.NewFileSet(), dir, notTest, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pkgs {
			var text []string
			for _, f := range p.Files {
				for _, c := range f.Comments {
					text = append(text, c.Text())
				}
			}
			has := members(doc.New(p, dir, doc.PreserveAST))
			for _, m := range docLink.FindAllStringSubmatch(strings.Join(text, "\n"), -1) {
				if of, ok := has[m[1]]; ok && !of[m[2]] {
					t.Errorf("%s: a comment links to [%s.%s], which does not exist", dir, m[1], m[2])
				}
			}
		}
	}
}

// members are the methods and fields of each exported type. A type that is another
// package's by an alias is left out.
func members(p *doc.Package) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, ty := range p.Types {
		spec, ok := ty.Decl.Specs[0].(*ast.TypeSpec)
		if !ok || spec.Assign.IsValid() {
			continue
		}
		has := map[string]bool{}
		for _, m := range ty.Methods {
			has[m.Name] = true
		}
		var fields *ast.FieldList
		switch u := spec.Type.(type) {
		case *ast.StructType:
			fields = u.Fields
		case *ast.InterfaceType:
			fields = u.Methods
		}
		if fields != nil {
			for _, f := range fields.List {
				for _, n := range f.Names {
					has[n.Name] = true
				}
			}
		}
		all[ty.Name] = has
	}
	return all
}
