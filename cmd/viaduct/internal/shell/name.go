package shell

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name returns the name of a file for a line of output. Name quotes a name that is not UTF-8,
// begins with a quote, or has an unprintable character, such as a line break.
func Name(s string) string {
	if utf8.ValidString(s) && !strings.HasPrefix(s, `"`) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}
