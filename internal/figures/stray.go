package figures

import (
	"regexp"
	"strings"
)

// figure is a measured figure in the text of a page: a number with the unit of a rate or of a
// latency, or a ratio.
var figure = regexp.MustCompile(`\d[\d.,]*(?: to \d[\d.,]*)?(?: (?:[GM]B/s|[GM]bit/s|[Mk]/s|us\b|µs\b|times\b)| million (?:messages )?(?:a|per) second)`)

// strays returns the figures of a text that the results do not have.
func (r *Results) strays(text string) (all []string) {
	expected, _ := r.expected()
	known := strings.Join(r.Peers.Rows, "\n") + strings.Join(r.Run.Rows, "\n") + expected
	for _, f := range figure.FindAllString(text, -1) {
		value := f
		if ratio, ok := strings.CutSuffix(f, " times"); ok {
			value = ratio
		}
		if !regexp.MustCompile(`(^|[| (\n])` + regexp.QuoteMeta(value) + `([| )\n]|$)`).MatchString(known) {
			all = append(all, f)
		}
	}
	return all
}
