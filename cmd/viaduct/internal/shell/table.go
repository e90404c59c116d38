package shell

import (
	"strings"
	"unicode/utf8"
)

// Table lays out rows in columns; the first row is the head. A column whose name ends in ">" (not
// shown) is right-aligned.
func Table(rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	c := NewColumns(rows[0])
	c.Fit(rows[1:]...)
	return c.Head() + c.Lay(rows[1:]...)
}

// Columns lays out a table whose rows arrive separately.
type Columns struct {
	head  []string
	right []bool
	width []int
}

// NewColumns returns columns as wide as the names. A name ending in ">" (not shown) makes the
// column right-aligned.
func NewColumns(names []string) *Columns {
	c := &Columns{head: make([]string, len(names)), right: make([]bool, len(names)), width: make([]int, len(names))}
	for i, n := range names {
		c.head[i], c.right[i] = strings.CutSuffix(n, ">")
	}
	c.Fit(c.head)
	return c
}

// Fit makes the columns wide enough for rows.
func (c *Columns) Fit(rows ...[]string) {
	for _, r := range rows {
		for i, s := range r {
			c.width[i] = max(c.width[i], utf8.RuneCountInString(s))
		}
	}
}

// Head returns the line with the names.
func (c *Columns) Head() string { return c.Lay(c.head) }

// Lay returns rows as lines. A cell wider than the column shifts the rest of the line.
func (c *Columns) Lay(rows ...[]string) string {
	var b strings.Builder
	for _, r := range rows {
		var line strings.Builder
		for i, s := range r {
			pad := strings.Repeat(" ", max(0, c.width[i]-utf8.RuneCountInString(s)))
			if i > 0 {
				line.WriteString("  ")
			}
			if c.right[i] {
				line.WriteString(pad + s)
			} else {
				line.WriteString(s + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
