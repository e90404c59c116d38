package verbs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
)

// A match is a file of the server with a name that matches a pattern.
type match struct {
	rel string // below the base of the pattern
	en  store.Entry
}

// isPattern reports whether a path may be a pattern.
func isPattern(p string) bool { return strings.ContainsAny(p, `*?[\`) }

// glob returns the server's files a pattern names. An element that exists literally stands for
// itself. Other elements are matched by path.Match, and ** stands for any number of directories.
// base is the path before the first pattern. literal is set if the path itself exists. A pattern
// without a match is an error.
func glob(ctx context.Context, fc fileClient, pattern string) (base string, found []match, literal bool, err error) {
	parts := strings.Split(strings.Trim(path.Clean(pattern), "/"), "/")
	n := slices.IndexFunc(parts, isPattern)
	if n < 0 {
		n = len(parts) - 1
	}
	g := &globber{ctx: ctx, fc: fc, base: path.Join(parts[:n]...), seen: map[string]bool{}}
	if err := g.in("", parts[n:], 0); err != nil {
		if errors.Is(err, path.ErrBadPattern) {
			err = shell.Usagef("%q is no pattern: a [ lacks its ]", pattern)
		}
		return "", nil, false, err
	}
	if len(g.found) == 0 {
		return "", nil, false, shell.Hint(fmt.Errorf("nothing at the server matches %q", pattern),
			"viaduct ls shows what is there")
	}
	literal = len(g.found) == 1 && g.found[0].rel == strings.Join(parts[n:], "/")
	return g.base, g.found, literal, nil
}

// topmost removes matches in a directory that also matches.
func topmost(found []match) []match {
	dirs := map[string]bool{}
	for _, m := range found {
		dirs[m.rel] = m.en.Dir
	}
	return slices.DeleteFunc(slices.Clone(found), func(m match) bool {
		for up := path.Dir(m.rel); up != "."; up = path.Dir(up) {
			if dirs[up] {
				return true
			}
		}
		return false
	})
}

type globber struct {
	ctx   context.Context
	fc    fileClient
	base  string
	found []match
	seen  map[string]bool // paths of the files in found
}

// in adds the matches of parts, the remaining elements of the pattern, below the directory rel.
// There is at least one element. depth is the number of calls of in so far.
func (g *globber) in(rel string, parts []string, depth int) error {
	if depth > maxDepth {
		return tooDeep(rel)
	}
	es, err := g.fc.List(g.ctx, path.Join(g.base, rel))
	if depth > 0 && (errors.Is(err, memsvc.ErrRefused) || errors.Is(err, httpfile.ErrRefused)) {
		return nil // the directory was removed meanwhile, or is a file
	}
	if err != nil {
		return err
	}
	literal := slices.ContainsFunc(es, func(en store.Entry) bool { return string(en.Name) == parts[0] })
	many := parts[0] == "**" && !literal
	rest := parts[1:]
	if many && len(rest) > 0 { // ** may also stand for no directory
		if err := g.in(rel, rest, depth+1); err != nil {
			return err
		}
	}
	for _, en := range es {
		if err := checkName(en); err != nil {
			return err
		}
		p := path.Join(rel, string(en.Name))
		hit := string(en.Name) == parts[0]
		if !literal && !many {
			if hit, err = path.Match(parts[0], string(en.Name)); err != nil {
				return err
			}
		}
		switch {
		case many && en.Dir:
			if len(rest) == 0 {
				g.take(p, en)
			}
			err = g.in(p, parts, depth+1)
		case (hit || many) && len(rest) == 0:
			g.take(p, en)
		case hit && en.Dir:
			err = g.in(p, rest, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (g *globber) take(rel string, en store.Entry) {
	if !g.seen[rel] {
		g.seen[rel] = true
		g.found = append(g.found, match{rel, en})
	}
}
