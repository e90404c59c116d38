package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"viaduct/internal/tools/register"
)

// A test is a test function of a package.
type test struct{ pkg, name string }

// A testIndex finds the test functions using a declaration of the module's test files, by comparing
// names.
type testIndex struct {
	root string

	mu   sync.Mutex
	dirs map[string]*testDir // guarded by mu
}

type testDir struct {
	tests map[string]bool            // the test functions
	users map[string]map[string]bool // names of the declarations that use a name
	suite map[string]bool            // the test functions that run the provider contract
}

var testName = regexp.MustCompile(`^(Test|Fuzz)([^a-z]|$)`)

const suitePackage = "internal/vitest"

// dir returns the index of a package. The caller holds mu.
func (x *testIndex) dir(pkg string) *testDir {
	if d := x.dirs[pkg]; d != nil {
		return d
	}
	d := &testDir{tests: map[string]bool{}, users: map[string]map[string]bool{}, suite: map[string]bool{}}
	x.dirs[pkg] = d
	names, _ := filepath.Glob(filepath.Join(x.root, pkg, "*_test.go"))
	for _, name := range names {
		src, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil && testName.MatchString(decl.Name.Name) {
					d.tests[decl.Name.Name] = true
				}
				d.use(decl.Name.Name, decl)
			case *ast.GenDecl:
				for _, s := range decl.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							d.use(n.Name, s)
						}
					case *ast.TypeSpec:
						d.use(s.Name.Name, s)
					}
				}
			}
		}
	}
	for t := range d.testsUsing("vitest") {
		d.suite[t] = true
	}
	return d
}

func (d *testDir) use(by string, n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name != by {
			if d.users[id.Name] == nil {
				d.users[id.Name] = make(map[string]bool)
			}
			d.users[id.Name][by] = true
		}
		return true
	})
}

// testsUsing returns the test functions using a name, directly or through others.
func (d *testDir) testsUsing(name string) map[string]bool {
	out := make(map[string]bool)
	seen := map[string]bool{name: true}
	for todo := []string{name}; len(todo) > 0; todo = todo[1:] {
		if d.tests[todo[0]] {
			out[todo[0]] = true
			continue
		}
		for u := range d.users[todo[0]] {
			if !seen[u] {
				seen[u] = true
				todo = append(todo, u)
			}
		}
	}
	return out
}

// cited returns the test functions named by the citations of a row. A row cited in the provider
// contract is guarded by the tests running the contract for pkg, or else for package vi.
func (x *testIndex) cited(reg *register.Register, r *register.Row, pkg string) (out []test) {
	x.mu.Lock()
	defer x.mu.Unlock()
	add := func(dir string, names map[string]bool) {
		for n := range names {
			if t := (test{dir, n}); !slices.Contains(out, t) {
				out = append(out, t)
			}
		}
	}
	for _, c := range reg.Cites {
		if c.Row != r || !c.Test {
			continue
		}
		dir, _, _ := cutLast(c.File)
		switch {
		case dir == suitePackage:
			if d := x.dir(pkg); len(d.suite) > 0 {
				add(pkg, d.suite)
			} else {
				add("vi", x.dir("vi").suite)
			}
		case strings.HasSuffix(c.File, "_test.go") && c.Decl != "":
			name := c.Decl
			if _, method, ok := strings.Cut(name, "."); ok {
				name = method
			}
			add(dir, x.dir(dir).testsUsing(name))
		}
	}
	return out
}
