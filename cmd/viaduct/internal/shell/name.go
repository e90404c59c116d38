package shell

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name returns the name of a file as a line for people shows it: as it is, or in quotes with
// escapes if it holds what would break the line or is not UTF-8.
func Name(s string) string {
	if utf8.ValidString(s) && !strings.HasPrefix(s, `"`) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}
