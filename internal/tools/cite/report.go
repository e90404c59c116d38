package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"viaduct/internal/tools/register"
)

// counts are the figures of a document. Every row is in exactly one of the five fields after rows.
type counts struct {
	rows, kept, deviates, excepted, untested, open int
}

func count(d *register.Document) (c counts) {
	for _, r := range d.Rows {
		c.rows++
		switch {
		case r.Lacks() != "":
			c.open++
		case r.Class == register.Deviating:
			c.deviates++
		case r.Class == register.Excepted:
			c.excepted++
		case r.Class == register.Untested:
			c.untested++
		default:
			c.kept++
		}
	}
	return c
}

func (c *counts) add(o counts) {
	c.rows += o.rows
	c.kept += o.kept
	c.deviates += o.deviates
	c.excepted += o.excepted
	c.untested += o.untested
	c.open += o.open
}

// sourcesOf counts the rows of each source, most frequent first, as "2 standard, 1 assigned". It
// returns "" if the matrix of the document has no sources.
func sourcesOf(d *register.Document) string {
	n := make(map[string]int)
	for _, r := range d.Rows {
		if r.Source != "" {
			n[r.Source]++
		}
	}
	names := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b))
	})
	for i, s := range names {
		names[i] = fmt.Sprintf("%d %s", n[s], s)
	}
	return strings.Join(names, ", ")
}

// printSummary prints a line per document, with the sources of the rows if the matrix has sources.
func printSummary(g *register.Register, w io.Writer, wanted func(string) bool) {
	fmt.Fprintf(w, "%-36s %5s %6s %9s %9s %9s %6s\n", "document", "rows", "kept", "deviates", "excepted", "untested", "open")
	line := func(title string, c counts) {
		fmt.Fprintf(w, "%-36s %5d %6d %9d %9d %9d %6d\n", title, c.rows, c.kept, c.deviates, c.excepted, c.untested, c.open)
	}
	var sum counts
	var sources []string
	for i := range g.Docs {
		d := &g.Docs[i]
		if !wanted(d.Key) {
			continue
		}
		c := count(d)
		line(d.Title, c)
		sum.add(c)
		if s := sourcesOf(d); s != "" {
			sources = append(sources, fmt.Sprintf("sources of %s: %s", d.Title, s))
		}
	}
	line("all", sum)
	for _, s := range sources {
		fmt.Fprintln(w, s)
	}
}

// printMissing prints the open rows.
func printMissing(g *register.Register, w io.Writer, wanted func(string) bool) {
	for i := range g.Docs {
		d := &g.Docs[i]
		if !wanted(d.Key) {
			continue
		}
		title := false
		for _, r := range d.Rows {
			what := r.Lacks()
			if what == "" {
				continue
			}
			if !title {
				fmt.Fprintf(w, "\n%s (docs/requirements/%s)\n", d.Title, d.File)
				title = true
			}
			fmt.Fprintf(w, "  %-18s %-16s %-10s %s\n", r.ID, what, r.Level, clip(r.Text, 100))
		}
	}
}

// printHelpers prints the rows cited in helpers of test files, and how many of them no test itself
// cites.
func printHelpers(g *register.Register, w io.Writer, wanted func(string) bool) {
	rows, only := 0, 0
	for i := range g.Docs {
		d := &g.Docs[i]
		if !wanted(d.Key) {
			continue
		}
		for _, r := range d.Rows {
			var at []string
			for _, p := range r.Tests {
				if p.Helper {
					at = append(at, p.File+" "+p.Decl)
				}
			}
			if len(at) == 0 {
				continue
			}
			rows++
			mark := ""
			if len(at) == len(r.Tests) {
				only++
				mark = "  (nowhere else)"
			}
			fmt.Fprintf(w, "  %-18s %s%s\n", r.ID, strings.Join(at, ", "), mark)
		}
	}
	fmt.Fprintf(w, "%d rows are cited in helpers of test files, %d of them in no test\n", rows, only)
}

// clip shortens s to about n characters at a space.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	if i := strings.LastIndexByte(s[:n], ' '); i > 0 {
		n = i
	}
	return strings.ToValidUTF8(s[:n], "") + " ..."
}
