package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"viaduct/internal/tools/register"
)

var docTag = regexp.MustCompile(`\[([A-Z][A-Z0-9]*)[- ][A-Z0-9][^\[\]]*\]`)

// docTags returns the citations go doc would show: in the documentation of exported names of the
// public packages.
func docTags(g *register.Register, root string) (problems []string, err error) {
	dirs, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		files, err := filepath.Glob(filepath.Join(root, d.Name(), "*.go"))
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, file)
		}
		if len(parsed) == 0 || parsed[0].Name.Name == "main" {
			continue
		}
		// Like go doc, NewFromFiles drops unexported names with their comments.
		p, err := doc.NewFromFiles(fset, parsed, d.Name())
		if err != nil {
			return nil, err
		}
		for _, c := range shown(p, parsed[0]) {
			for _, m := range docTag.FindAllStringSubmatch(c.text, -1) {
				at := fset.Position(c.at)
				if g.Key[m[1]] {
					problems = append(problems, fmt.Sprintf("%s/%s:%d: %s is in a comment that go doc shows: let it stand behind the line, as \"func F() { // %s\"",
						d.Name(), filepath.Base(at.Filename), at.Line, m[0], m[0]))
				}
			}
		}
	}
	return problems, nil
}

// A comment is the text of a documentation comment with the comment's or the declaration's
// position.
type comment struct {
	text string
	at   token.Pos
}

// shown returns the comments go doc shows for package p. first is a file of p.
func shown(p *doc.Package, first *ast.File) []comment {
	out := []comment{{p.Doc, first.Pos()}}
	// Take the comments doc.New has moved out of the declarations. Comments of fields and values
	// stay in the syntax tree.
	add := func(text string, d ast.Node) { out = append(out, comment{text, d.Pos()}) }
	decl := func(text string, d ast.Node) {
		add(text, d)
		ast.Inspect(d, func(n ast.Node) bool {
			if g, ok := n.(*ast.CommentGroup); ok {
				add(g.Text(), g)
			}
			return true
		})
	}
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			decl(v.Doc, v.Decl)
		}
	}
	funcs := func(fs []*doc.Func) {
		for _, f := range fs {
			add(f.Doc, f.Decl)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, t := range p.Types {
		decl(t.Doc, t.Decl)
		values(t.Consts)
		values(t.Vars)
		funcs(t.Funcs)
		funcs(t.Methods)
	}
	return out
}
