package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"viaduct/internal/tools/register"
)

// These are the paths of the generated pages, relative to the root of the module.
const (
	indexPage = "docs/conformance.md"
	pagesDir  = "docs/conformance"
)

// pages renders the conformance pages: an index, and a page for each file of docs/requirements. The
// names are slash-separated paths from the root.
func pages(g *register.Register) map[string][]byte {
	out := make(map[string][]byte)
	var index bytes.Buffer
	index.WriteString(`# Conformance

Which requirement is kept where, and which test would fail without it. The pages are written by ` + "`go run ./internal/tools/cite -write`" + ` from the
citations in the code and the matrices in [requirements](requirements/); do not edit them. Every row is counted once:

- kept: code keeps it and a test guards it. Fakes and test suites are not code;
- deviates: we do something else on purpose. [exceptions.md](requirements/exceptions.md) has the decision, the reason, and what a peer notices;
- excepted: the row cannot bind this implementation, for the reason in the same file or in the matrix;
- untested: code keeps it, but no test can show it; the same file says what does;
- open: code or test is missing.

How many small changes of the cited lines the cited tests notice is in [mutation.md](mutation.md).

| document | rows | kept | deviates | excepted | untested | open |
|---|---|---|---|---|---|---|
`)
	var tail bytes.Buffer
	var sum counts
	byFile := make(map[string]*bytes.Buffer)
	for i := range g.Docs {
		d := &g.Docs[i]
		page := pagesDir + "/" + d.File
		c := count(d)
		fmt.Fprintf(&index, "| [%s](conformance/%s#%s) | %d | %d | %d | %d | %d | %d |\n", d.Title, d.File, anchor(d.Title), c.rows, c.kept, c.deviates, c.excepted, c.untested, c.open)
		sum.add(c)
		if s := sourcesOf(d); s != "" {
			fmt.Fprintf(&tail, "\nSources of the rows of %s: %s.\n", d.Title, s)
		}
		b := byFile[page]
		if b == nil {
			b = new(bytes.Buffer)
			byFile[page] = b
			fmt.Fprintf(b, "# Conformance: %s\n\nWritten by `go run ./internal/tools/cite -write`; do not edit. The rows are those of [%s](../requirements/%s).\n", strings.TrimSuffix(d.File, ".md"), d.File, d.File)
		}
		render(d, b)
	}
	fmt.Fprintf(&index, "| all | %d | %d | %d | %d | %d | %d |\n", sum.rows, sum.kept, sum.deviates, sum.excepted, sum.untested, sum.open)
	index.Write(tail.Bytes())
	out[indexPage] = index.Bytes()
	for page, b := range byFile {
		out[page] = b.Bytes()
	}
	return out
}

func render(d *register.Document, b *bytes.Buffer) {
	source, dashes := "", ""
	if sourcesOf(d) != "" {
		source, dashes = " source |", "---|"
	}
	fmt.Fprintf(b, "\n## %s\n\n| id |%s level | requirement | code | tests |\n|---|%s---|---|---|---|\n", d.Title, source, dashes)
	for _, r := range d.Rows {
		code, tests := links(r.Code), links(r.Tests)
		switch {
		case r.Class == register.Untested:
			tests = r.Reason
		case r.Reason != "" && code == "":
			code = r.Reason
		case r.Reason != "":
			code += "; " + r.Reason
		}
		if r.NeedsCode() {
			code = "**open**"
		}
		if r.NeedsTest() {
			tests = "**open**"
		}
		if source != "" {
			source = " " + r.Source + " |"
		}
		fmt.Fprintf(b, "| %s |%s %s | %s | %s | %s |\n", r.ID, source, r.Level, r.Text, code, tests)
	}
}

// links lists places as links to their files with the names of the declarations, file by file. Line
// numbers are omitted, because they change too often.
func links(ps []register.Place) string {
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

// anchor returns the fragment of a link to the heading title.
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

// writePages writes the pages under root.
func writePages(g *register.Register, root string) error {
	pages := pages(g)
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

// stale returns the pages different from the files under root.
func stale(g *register.Register, root string) (names []string) {
	for name, b := range pages(g) {
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil || !bytes.Equal(got, b) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
