package shell

import (
	"strings"
	"unicode/utf8"
)

// Table lays out rows in columns; the first row is the head. Columns whose
// name ends in ">" (which is not shown) are set to the right.
func Table(rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	right := make([]bool, len(rows[0]))
	width := make([]int, len(rows[0]))
	head := make([]string, len(rows[0]))
	for i, h := range rows[0] {
		head[i], right[i] = strings.CutSuffix(h, ">")
	}
	rows = append([][]string{head}, rows[1:]...)
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		var line strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i > 0 {
				line.WriteString("  ")
			}
			if right[i] {
				line.WriteString(pad + c)
			} else {
				line.WriteString(c + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
