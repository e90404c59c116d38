package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxWidth is the widest line of a comment or page, in columns. Prose is wrapped at 100 columns;
// the rest allows an unbreakable address or name.
const maxWidth = 120

// A line is an added line of prose, in a Go comment, or in a page outside of code and tables.
type line struct {
	file string
	at   int // from 1
	text string
	wide int // columns of the whole line
}

var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)`)

// parseDiff returns the lines of prose added by a diff without context. read returns the current
// page; parseDiff needs the page to find the lines in blocks of code.
func parseDiff(diff string, read func(file string) string) (lines []line) {
	file, at := "", 0
	var code map[int]bool
	for l := range strings.SplitSeq(diff, "\n") {
		switch {
		case strings.HasPrefix(l, "+++ "):
			file = strings.TrimPrefix(strings.TrimPrefix(l, "+++ "), "b/")
			if code = nil; strings.HasSuffix(file, ".md") {
				code = codeLines(read(file))
			}
		case strings.HasPrefix(l, "@@ "):
			if m := hunk.FindStringSubmatch(l); m != nil {
				at, _ = strconv.Atoi(m[1])
			}
		case strings.HasPrefix(l, "+"):
			whole := l[1:]
			if text, ok := prose(file, whole, code[at]); ok {
				lines = append(lines, line{file, at, text, width(whole)})
			}
			at++
		}
	}
	return lines
}

// codeLines returns the numbers of the lines of a page in blocks of code.
func codeLines(page string) map[int]bool {
	in, code := false, map[int]bool{}
	at := 0
	for l := range strings.SplitSeq(page, "\n") {
		at++
		if strings.HasPrefix(l, "```") {
			in = !in
		}
		code[at] = in
	}
	return code
}

// prose returns the text of a line without comment marks. ok is false for code and tables.
func prose(file, whole string, code bool) (text string, ok bool) {
	trimmed := strings.TrimSpace(whole)
	if strings.HasSuffix(file, ".go") {
		text, ok = strings.CutPrefix(trimmed, "// ")
		return text, ok
	}
	if code || trimmed == "" || strings.HasPrefix(whole, "    ") || strings.HasPrefix(whole, "```") || strings.HasPrefix(trimmed, "|") {
		return "", false
	}
	return trimmed, true
}

// width counts columns, with a tab as four.
func width(s string) int {
	return utf8.RuneCountInString(s) + 3*strings.Count(s, "\t")
}

func checkWidths(lines []line) (bad []string) {
	for _, l := range lines {
		if l.wide > maxWidth && strings.Contains(l.text, " ") {
			bad = append(bad, fmt.Sprintf("%s:%d: %d columns, at most %d: wrap prose at 100", l.file, l.at, l.wide, maxWidth))
		}
	}
	return bad
}
