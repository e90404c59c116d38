package main

import (
	"fmt"
	"slices"
	"strings"
)

// A pkg is a package of the module in the output of go list.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// check returns the offences of the packages against the rules, as lines, in
// order and without repetition.
func check(module string, pkgs []pkg) []string {
	c := checker{module: module}
	for _, p := range pkgs {
		c.pkg(p)
	}
	slices.Sort(c.offences)
	return slices.Compact(c.offences)
}

type checker struct {
	module   string
	offences []string
}

func (c *checker) offend(from, to, why string) {
	c.offences = append(c.offences, fmt.Sprintf("%s -> %s: %s", from, to, why))
}

// path returns the import path relative to the module; ok is false for other modules.
func (c *checker) path(importPath string) (path string, ok bool) {
	if importPath == c.module {
		return ".", true
	}
	return strings.CutPrefix(importPath, c.module+"/")
}

func (c *checker) pkg(p pkg) {
	at, ok := c.path(p.ImportPath)
	if !ok {
		return
	}
	r := ruleFor(at)
	if r == nil {
		c.offences = append(c.offences, at+": has no place in the picture (internal/tools/archcheck/rules.go)")
		return
	}
	for _, to := range p.Imports {
		c.arrow(at, r, to)
	}
	for _, to := range p.TestImports {
		c.testArrow(at, r, to)
	}
	for _, to := range p.XTestImports {
		if path, ours := c.path(to); ours && slices.Contains(inExamples[at], path) {
			continue
		}
		c.testArrow(at, r, to)
	}
}

// arrow checks an import of a package outside of the package's tests.
func (c *checker) arrow(at string, r *rule, importPath string) {
	to, ours := c.path(importPath)
	switch {
	case !ours && isStandard(importPath):
		if (r.kind == codec || r.kind == core) && notInCodecs[importPath] {
			c.offend(at, importPath, "codecs and cores do no input or output and share nothing")
		}
		if r.kind == docs {
			c.offend(at, importPath, "the front page imports nothing")
		}
	case !ours:
		if r.kind == root || r.kind == tool || r.kind == testOnly && within(importPath, inTests) {
			return
		}
		if !within(importPath, inLibraries) {
			c.offend(at, importPath, "a library imports the standard library and "+strings.Join(inLibraries, ", "))
		}
	default:
		c.ours(at, r, to)
	}
}

// ours checks an import of another package of the module.
func (c *checker) ours(at string, r *rule, to string) {
	t := ruleFor(to)
	switch {
	case t == nil:
		return // the package without a rule is reported by itself
	case t.kind == root:
		if r.kind != root || top(at) != top(to) {
			c.offend(at, to, "a program is not to be imported")
		}
	case t.kind == tool && r.kind != tool:
		c.offend(at, to, "only tools import a tool")
	case t.kind == testOnly:
		if r.kind != testOnly {
			c.offend(at, to, "only tests import it")
		}
	case t.kind == docs:
		c.offend(at, to, "the front page is not to be imported")
	case t.kind == suite && r.kind != suite:
		c.offend(at, to, "only tests import a suite")
	case !allows(r.imports, to, t):
		c.offend(at, to, "no such arrow in the picture")
	}
}

// testArrow checks an import of a test. A test may do what its package may, and use the test kit
// and the package itself. Tests of packages other than tools may also use any codec and any
// internal package.
func (c *checker) testArrow(at string, r *rule, importPath string) {
	to, ours := c.path(importPath)
	switch {
	case !ours:
		if !isStandard(importPath) && !within(importPath, inTests) {
			c.arrow(at, r, importPath)
		}
	case to == at:
	default:
		if t := ruleFor(to); t != nil && (t.kind == testOnly || r.kind != tool && (t.kind == suite || t.kind == codec || t.kind == internal)) {
			return
		}
		c.ours(at, r, to)
	}
}

// ruleFor returns the rule with the longest fitting place for path, or nil if no place fits.
func ruleFor(path string) *rule {
	var best *rule
	for i := range rules {
		if r := &rules[i]; fits(path, r.place) && (best == nil || r.narrower(best)) {
			best = r
		}
	}
	return best
}

// narrower reports whether r is more specific than another rule for the same package.
func (r *rule) narrower(than *rule) bool {
	a, below := strings.CutSuffix(r.place, "/...")
	b, _ := strings.CutSuffix(than.place, "/...")
	return len(a) > len(b) || len(a) == len(b) && !below
}

// fits reports whether a place such as "vi" or "vi/..." includes path.
func fits(path, place string) bool {
	if place == "..." {
		return true
	}
	base, below := strings.CutSuffix(place, "/...")
	return path == base || below && strings.HasPrefix(path, base+"/")
}

// allows reports whether a rule permits importing the package at path. places are the rule's
// permitted imports, and t is the imported package's own rule.
func allows(places []string, path string, t *rule) bool {
	return slices.ContainsFunc(places, func(place string) bool {
		return fits(path, place) && (place != "internal/..." || t.kind == internal)
	})
}

// within reports whether importPath is in paths, or below a path there.
func within(importPath string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return fits(importPath, p+"/...") })
}

// isStandard reports whether an import path belongs to the standard library: the first element has
// no dot.
func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

func top(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}
