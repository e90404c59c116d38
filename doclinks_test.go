package viaduct_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docLink is a link to a method or field of the same package, such as [Status.Err].
var docLink = regexp.MustCompile(`\[\*?([A-Z]\w*)\.([A-Z]\w*)\]`)

// TestDocLinks: what the comments of the public packages link to exists: go doc names
// nothing that was removed.
func TestDocLinks(t *testing.T) {
	for _, dir := range []string{"vi", "vitcp", "fcvi", "iwarp", "sdp", "portmap", "registry", "samehost", "roce"} {
		names, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(names), err)
		}
		has := map[string]map[string]bool{}
		var text strings.Builder
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			addMembers(has, f)
			for _, c := range f.Comments {
				text.WriteString(c.Text())
			}
		}
		for _, m := range docLink.FindAllStringSubmatch(text.String(), -1) {
			if of := has[m[1]]; of != nil && !of[m[2]] {
				t.Errorf("%s: a comment links to [%s.%s], which does not exist", dir, m[1], m[2])
			}
		}
	}
}

// addMembers adds the methods and fields of the types that f declares. A type that is another
// package's by an alias, or embeds one, is left out: its members are declared elsewhere.
func addMembers(has map[string]map[string]bool, f *ast.File) {
	add := func(of, name string) {
		if has[of] == nil {
			has[of] = map[string]bool{}
		}
		has[of][name] = true
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				add(receiver(d.Recv.List[0].Type), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				spec, ok := s.(*ast.TypeSpec)
				if !ok || spec.Assign.IsValid() {
					continue
				}
				var fields *ast.FieldList
				switch u := spec.Type.(type) {
				case *ast.StructType:
					fields = u.Fields
				case *ast.InterfaceType:
					fields = u.Methods
				default:
					continue
				}
				for _, field := range fields.List {
					for _, n := range field.Names {
						add(spec.Name.Name, n.Name)
					}
				}
			}
		}
	}
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
