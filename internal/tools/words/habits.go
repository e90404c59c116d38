package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// habits are constructions that make a reader go back, each with a limit per 10,000 words. The
// limits are somewhat above the counts in projects whose comments read well.
var habits = []struct {
	name string
	aim  int
	form *regexp.Regexp
}{
	{"a clause where a noun belongs (what is missing)", 8, regexp.MustCompile(`\b[Ww]hat (?:is|was|has|had|have|are|were|comes|came|it|the|they|we|that|follows|goes|arrives|stands|belongs|may|can|else|there)\b`)},
	{"data that tells or hears", 6, regexp.MustCompile(`\b(?:tells?|told|hears?|heard)\b`)},
	{"behind, beside, in place of, in vain, anew", 4, regexp.MustCompile(`\b(?:behind|beside|in place of|in vain|for want of|as ever|of late|anew)\b`)},
	{"that of, those that, of which", 10, regexp.MustCompile(`\b(?:(?:that|those) (?:of|that|which)|(?:of|by|for|in|to|at|from) which)\b`)},
}

// A paragraph is a run of added lines.
type paragraph struct {
	file string
	at   int
	text string
}

func paragraphs(lines []line) (ps []paragraph) {
	for i, l := range lines {
		if i > 0 && lines[i-1].file == l.file && lines[i-1].at+1 == l.at {
			ps[len(ps)-1].text += " " + l.text
			continue
		}
		ps = append(ps, paragraph{l.file, l.at, l.text})
	}
	return ps
}

func (p paragraph) habits() (n int) {
	for _, h := range habits {
		n += len(h.form.FindAllString(p.text, -1))
	}
	return n
}

// count returns a line for each habit, and a line for each of the worst paragraphs.
func count(lines []line, worst int) (out []string) {
	ps := paragraphs(lines)
	words := 0
	found := make([]int, len(habits))
	for _, p := range ps {
		words += len(strings.Fields(p.text))
		for i, h := range habits {
			found[i] += len(h.form.FindAllString(p.text, -1))
		}
	}
	if words == 0 {
		return nil
	}
	out = append(out, fmt.Sprintf("%d words of comments and pages; habits for 10,000 words (aim):", words))
	for i, h := range habits {
		out = append(out, fmt.Sprintf("%6.1f (%d) %s", float64(found[i])*10000/float64(words), h.aim, h.name))
	}
	slices.SortStableFunc(ps, func(a, b paragraph) int { return b.habits() - a.habits() })
	for _, p := range ps[:min(worst, len(ps))] {
		if p.habits() > 1 {
			out = append(out, fmt.Sprintf("%s:%d: %d habits: %.90s", p.file, p.at, p.habits(), p.text))
		}
	}
	return out
}
