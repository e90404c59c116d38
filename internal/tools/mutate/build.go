package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"viaduct/internal/tools/register"
)

// A build is the module with the mutants, and the test programs built from the module.
type build struct {
	root    string
	module  string
	dir     string // directory of all output files
	reg     *register.Register
	mutants []*mutant // by id; entry 0 is unused
	pkgs    []string  // paths, relative to the module, of packages with mutants
	dropped map[string]bool
}

// A listed is a package in the output of "go list".
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	TestGoFiles             []string
	XTestGoFiles            []string
}

func goList(root string, args ...string) ([]listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Export,GoFiles,TestGoFiles,XTestGoFiles"}, args...)...)
	cmd.Dir = root
	var msg bytes.Buffer
	cmd.Stderr = &msg
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %v\n%s", err, msg.Bytes())
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
}

// rewrite generates the mutants of the packages and an overlay with them. Mutants with compile
// errors are left out.
func (b *build) rewrite(log io.Writer) error {
	pattern := make([]string, len(b.pkgs))
	for i, p := range b.pkgs {
		pattern[i] = "./" + p
	}
	all, err := goList(b.root, append([]string{"-export", "-deps"}, pattern...)...)
	if err != nil {
		return err
	}
	exports := make(map[string]string)
	byPath := make(map[string]listed)
	for _, l := range all {
		exports[l.ImportPath] = l.Export
		byPath[l.ImportPath] = l
	}
	cites := make(map[string][]register.Cite)
	for _, c := range b.reg.Cites {
		if !c.Test && !c.Fake {
			cites[c.File] = append(cites[c.File], c)
		}
	}
	for try := 0; ; try++ {
		b.mutants = []*mutant{nil}
		for _, p := range b.pkgs {
			if err := b.rewritePackage(p, byPath[b.module+"/"+p], exports, cites); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		if err := b.overlay(); err != nil {
			return err
		}
		bad, msg := b.compile(pattern)
		if msg == "" {
			break
		}
		if bad == 0 || try == 20 {
			return fmt.Errorf("mutants do not compile:\n%s", msg)
		}
		fmt.Fprintf(log, "left out the mutants of %d lines that do not compile\n", bad)
	}
	return nil
}

func (b *build) rewritePackage(pkg string, l listed, exports map[string]string, cites map[string][]register.Cite) error {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range l.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(l.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	tp, err := conf.Check(l.ImportPath, fset, files, info)
	if err != nil {
		return err
	}
	for i, f := range files {
		rel := pkg + "/" + l.GoFiles[i]
		src, err := os.ReadFile(filepath.Join(l.Dir, l.GoFiles[i]))
		if err != nil {
			return err
		}
		m := &mutator{fset: fset, file: f, src: src, info: info, pkg: tp, regions: regions(fset, f, cites[rel]), proto: mutant{pkg: pkg, file: rel}, next: b.enter}
		if err := os.WriteFile(filepath.Join(b.dir, strings.ReplaceAll(rel, "/", "__")), m.rewrite(), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (b *build) enter(m mutant) int {
	if b.dropped[fmt.Sprintf("%s:%d", m.file, m.line)] {
		return 0
	}
	m.id = len(b.mutants)
	b.mutants = append(b.mutants, &m)
	return m.id
}

func (b *build) overlayFile() string { return filepath.Join(b.dir, "overlay.json") }

func (b *build) overlay() error {
	replace := make(map[string]string)
	for _, p := range b.pkgs {
		name := path(p) + "__zz.go"
		pkg, err := goPackageName(filepath.Join(b.root, p))
		if err != nil {
			return err
		}
		file := filepath.Join(b.dir, name)
		if err := os.WriteFile(file, fmt.Appendf(nil, switches, pkg, len(b.mutants)), 0o600); err != nil {
			return err
		}
		replace[filepath.Join(b.root, p, "zz_mutants.go")] = file
	}
	done := make(map[string]bool)
	for _, m := range b.mutants[1:] {
		if !done[m.file] {
			done[m.file] = true
			replace[filepath.Join(b.root, m.file)] = filepath.Join(b.dir, path(m.file))
		}
	}
	j, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(b.overlayFile(), j, 0o600)
}

func path(p string) string { return strings.ReplaceAll(p, "/", "__") }

func goPackageName(dir string) (string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	for _, n := range names {
		if strings.HasSuffix(n, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), n, nil, parser.PackageClauseOnly)
		if err != nil {
			return "", err
		}
		return f.Name.Name, nil
	}
	return "", fmt.Errorf("no Go files in %s", dir)
}

var errorLine = regexp.MustCompile(`(?m)^([^\s:]+\.go):(\d+):\d+: `)

// compile builds the packages. It removes the mutants of lines with compile errors, and returns the
// number of removed lines in bad. msg is empty on success.
func (b *build) compile(pattern []string) (bad int, msg string) {
	cmd := exec.Command("go", append([]string{"build", "-gcflags=-e", "-overlay", b.overlayFile()}, pattern...)...)
	cmd.Dir = b.root
	out, err := cmd.CombinedOutput()
	if err == nil {
		return 0, ""
	}
	for _, m := range errorLine.FindAllStringSubmatch(string(out), -1) {
		file := m[1]
		for _, mu := range b.mutants[1:] {
			if n, _ := strconv.Atoi(m[2]); n != mu.line || filepath.Base(file) != filepath.Base(mu.file) && filepath.Base(file) != path(mu.file) {
				continue
			}
			if key := fmt.Sprintf("%s:%d", mu.file, mu.line); !b.dropped[key] {
				b.dropped[key] = true
				bad++
			}
		}
	}
	return bad, string(out)
}

// testProgram compiles the tests of a package with all mutants, once.
func (b *build) testProgram(pkg string) (string, error) {
	out := filepath.Join(b.dir, path(pkg)+".test")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-overlay", b.overlayFile(), "-o", out, "./"+pkg)
	cmd.Dir = b.root
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c ./%s: %v\n%s", pkg, err, msg)
	}
	return out, nil
}

// citedPackages returns the sorted packages with citations in code.
func citedPackages(reg *register.Register) []string {
	var out []string
	for _, c := range reg.Cites {
		dir, _, ok := cutLast(c.File)
		if ok && !c.Test && !c.Fake && !slices.Contains(out, dir) && !isRoot(dir) {
			out = append(out, dir)
		}
	}
	slices.Sort(out)
	return out
}

// isRoot reports whether a package is a program around the library. Nothing imports such a package.
func isRoot(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return slices.Contains([]string{"cmd", "capi", "interop", "bench", "examples"}, first)
}

func cutLast(p string) (dir, base string, ok bool) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "", p, false
	}
	return p[:i], p[i+1:], true
}
