package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A comment is the text and position of a comment of a public package.
type comment struct {
	at    string // file:line
	text  string
	shown bool // by go doc
}

// comments returns all comments of the package in dir, and the import names of internal packages in
// the files.
func comments(dir string) (texts []comment, internal []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	imported := map[string]bool{}
	fset := token.NewFileSet()
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
		if err != nil {
			return nil, nil, err
		}
		for _, im := range f.Imports {
			if p := strings.Trim(im.Path.Value, `"`); isInternal(p) {
				imported[path.Base(p)] = true
			}
		}
		for _, c := range f.Comments {
			p := fset.Position(c.Pos())
			texts = append(texts, comment{filepath.Join(filepath.Base(dir), filepath.Base(p.Filename)) + ":" + strconv.Itoa(p.Line), c.Text(), isShown(f, c)})
		}
	}
	return texts, slices.Collect(maps.Keys(imported)), nil
}

// isShown reports whether go doc shows a comment: in front of the package clause, or in or in
// front of the declaration of an exported name.
func isShown(f *ast.File, c *ast.CommentGroup) bool {
	if c.End() <= f.Package {
		return true
	}
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		switch d := d.(type) {
		case *ast.FuncDecl:
			return d.Doc == c && d.Name.IsExported() && (d.Recv == nil || isExported(d.Recv.List[0].Type))
		case *ast.GenDecl:
			return (d.Doc == c || d.Pos() < c.Pos() && c.Pos() < d.End()) && slices.ContainsFunc(d.Specs, func(s ast.Spec) bool {
				switch s := s.(type) {
				case *ast.TypeSpec:
					return s.Name.IsExported()
				case *ast.ValueSpec:
					return slices.ContainsFunc(s.Names, (*ast.Ident).IsExported)
				}
				return false
			})
		}
		return false
	})
}

// isExported reports whether the type of a receiver is exported.
func isExported(e ast.Expr) bool {
	if p, ok := e.(*ast.StarExpr); ok {
		e = p.X
	}
	id, ok := e.(*ast.Ident)
	return ok && id.IsExported()
}

var (
	// docLink is [Name], [Name.Member], [pkg.Name] or [pkg.Name.Member].
	docLink = regexp.MustCompile(`\[\*?((?:[a-z]\w*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?)\]`)
	// dotted matches a name in prose: Type.Member, pkg.Name, pkg.Type.Member.
	dotted = regexp.MustCompile(`\b(?:[a-z]\w*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?\b`)
	// fileName matches the name of a file. Otherwise dotted would take the name for a Go name.
	fileName = regexp.MustCompile(`[\w/]+\.(?:md|txt|go|toml)\b`)
)

// A glossary resolves the names in the comments of a package.
type glossary struct {
	pkg      *types.Package
	public   map[string]*types.Package // by name
	internal []string                  // names of the internal packages that pkg imports
}

// faults returns the faults of the names in a comment: links without a target, missing members of a
// type, and, in comments shown by go doc, names of internal packages.
func (g *glossary) faults(c comment) (found []string) {
	text := fileName.ReplaceAllString(c.text, "")
	for _, m := range docLink.FindAllStringSubmatch(text, -1) {
		if known, sure := g.known(m[1]); !known && sure {
			found = append(found, c.at+": a link to ["+m[1]+"], which does not exist")
		}
	}
	for _, name := range dotted.FindAllString(docLink.ReplaceAllString(text, ""), -1) {
		first, _, isDotted := strings.Cut(name, ".")
		switch {
		case !isDotted:
		case slices.Contains(g.internal, first) && g.public[first] == nil && !c.shown:
		case slices.Contains(g.internal, first) && g.public[first] == nil:
			found = append(found, c.at+": names "+name+" of an internal package")
		default:
			known, sure := g.known(name)
			if !known && sure && (g.public[first] != nil || g.typeOf(g.pkg, first) != nil) {
				found = append(found, c.at+": names "+name+", which does not exist")
			}
		}
	}
	return found
}

// known reports whether name exists in the package, or in the public package named at its
// beginning. sure is false if name belongs to another package.
func (g *glossary) known(name string) (known, sure bool) {
	parts := strings.Split(name, ".")
	pkg := g.pkg
	if token.IsExported(parts[0]) {
		// The name belongs to the package itself.
	} else if pkg = g.public[parts[0]]; pkg == nil {
		return false, false
	} else {
		parts = parts[1:]
	}
	if pkg.Scope().Lookup(parts[0]) == nil {
		return false, true
	}
	if len(parts) == 1 {
		return true, true
	}
	t := g.typeOf(pkg, parts[0])
	if t == nil {
		return false, true
	}
	o, _, _ := types.LookupFieldOrMethod(t, true, pkg, parts[1])
	return o != nil, true
}

func (g *glossary) typeOf(pkg *types.Package, name string) types.Type {
	if tn, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok {
		return tn.Type()
	}
	return nil
}

// docFaults returns the faults of the comments of all public packages.
func docFaults(root string, pkgs []*types.Package) (found []string, err error) {
	byName := map[string]*types.Package{}
	for _, p := range pkgs {
		byName[p.Name()] = p
	}
	for _, p := range pkgs {
		texts, internal, err := comments(filepath.Join(root, p.Name()))
		if err != nil {
			return nil, err
		}
		g := glossary{pkg: p, public: byName, internal: internal}
		for _, c := range texts {
			found = append(found, g.faults(c)...)
		}
	}
	return found, nil
}
