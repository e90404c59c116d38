package main

import (
	"fmt"
	"io"
	"strings"
)

// counts are the figures of one document.
type counts struct {
	rows, code, tests, excepted, open int
}

func (d *document) count() (c counts) {
	for _, r := range d.Rows {
		c.rows++
		if len(r.Code) > 0 {
			c.code++
		}
		if len(r.Tests) > 0 {
			c.tests++
		}
		if r.Reason != "" && !r.Untested {
			c.excepted++
		}
		if r.needsCode() || r.needsTest() {
			c.open++
		}
	}
	return c
}

// summary prints one line per document.
func (g *register) summary(w io.Writer, wanted func(string) bool) {
	fmt.Fprintf(w, "%-36s %5s %10s %10s %9s %6s\n", "document", "rows", "with code", "with test", "excepted", "open")
	var sum counts
	for i := range g.docs {
		d := &g.docs[i]
		if !wanted(d.Key) {
			continue
		}
		c := d.count()
		fmt.Fprintf(w, "%-36s %5d %10d %10d %9d %6d\n", d.Title, c.rows, c.code, c.tests, c.excepted, c.open)
		sum.rows += c.rows
		sum.code += c.code
		sum.tests += c.tests
		sum.excepted += c.excepted
		sum.open += c.open
	}
	fmt.Fprintf(w, "%-36s %5d %10d %10d %9d %6d\n", "all", sum.rows, sum.code, sum.tests, sum.excepted, sum.open)
}

// missing prints the open rows.
func (g *register) missing(w io.Writer, wanted func(string) bool) {
	for i := range g.docs {
		d := &g.docs[i]
		if !wanted(d.Key) {
			continue
		}
		title := false
		for _, r := range d.Rows {
			what := r.lacks()
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

func (r *row) lacks() string {
	switch c, t := r.needsCode(), r.needsTest(); {
	case c && t:
		return "no code, no test"
	case c:
		return "no code"
	case t:
		return "no test"
	}
	return ""
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
