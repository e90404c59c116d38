package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The generated pages, from the root of the module.
const (
	indexPage = "docs/conformance.md"
	pagesDir  = "docs/conformance"
)

// pages renders the conformance pages: an index, and one page for each file of
// docs/requirements. The names are slash-separated paths from the root.
func (g *register) pages() map[string][]byte {
	out := make(map[string][]byte)
	var index bytes.Buffer
	index.WriteString(`# Conformance

Which requirement is kept where, and which test would fail without it. The pages are written by ` + "`go run ./internal/tools/cite -write`" + ` from the
citations in the code and the matrices in [requirements](requirements/); do not edit them. An open row is one that has no code or no test cited
and no reason in [exceptions.md](requirements/exceptions.md).

| document | rows | with code | with test | excepted | open |
|---|---|---|---|---|---|
`)
	byFile := make(map[string]*bytes.Buffer)
	for i := range g.docs {
		d := &g.docs[i]
		page := pagesDir + "/" + d.File
		c := d.count()
		fmt.Fprintf(&index, "| [%s](conformance/%s#%s) | %d | %d | %d | %d | %d |\n", d.Title, d.File, anchor(d.Title), c.rows, c.code, c.tests, c.excepted, c.open)
		b := byFile[page]
		if b == nil {
			b = new(bytes.Buffer)
			byFile[page] = b
			fmt.Fprintf(b, "# Conformance: %s\n\nWritten by `go run ./internal/tools/cite -write`; do not edit. The rows are those of [%s](../requirements/%s).\n", strings.TrimSuffix(d.File, ".md"), d.File, d.File)
		}
		d.render(b)
	}
	out[indexPage] = index.Bytes()
	for page, b := range byFile {
		out[page] = b.Bytes()
	}
	return out
}

func (d *document) render(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## %s\n\n| id | level | requirement | code | tests |\n|---|---|---|---|---|\n", d.Title)
	for _, r := range d.Rows {
		code, tests := links(r.Code), links(r.Tests)
		if r.Reason != "" {
			if r.Untested {
				tests = r.Reason
			} else if code == "" {
				code = r.Reason
			} else {
				code += "; " + r.Reason
			}
		}
		if code == "" {
			code = "**open**"
		}
		if tests == "" && (r.Reason == "" || r.Untested) {
			tests = "**open**"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", r.ID, r.Level, r.Text, code, tests)
	}
}

// links lists places as links to their files with the names of what stands
// there, file by file. Lines are left out on purpose: they move too often.
func links(ps []place) string {
	byFile := make(map[string][]string)
	var files []string
	for _, p := range ps {
		if _, ok := byFile[p.File]; !ok {
			files = append(files, p.File)
		}
		byFile[p.File] = append(byFile[p.File], p.Decl)
	}
	slices.Sort(files)
	var out []string
	for _, f := range files {
		names := byFile[f]
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s == "" })
		s := fmt.Sprintf("[%s](../../%s)", path.Base(path.Dir(f))+"/"+path.Base(f), f)
		if len(names) > 0 {
			s += " `" + strings.Join(names, "` `") + "`"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

// anchor is the fragment a heading gets when it is rendered.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r == ' ':
			return '-'
		}
		return -1
	}, title)
}

// write writes the pages under root.
func (g *register) write(root string) error {
	pages := g.pages()
	for name, b := range pages {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stale returns the pages that differ from what is on disk under root.
func (g *register) stale(root string) (names []string) {
	for name, b := range g.pages() {
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil || !bytes.Equal(got, b) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
