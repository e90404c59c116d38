package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxSubject is the longest subject git log --oneline and mail show completely.
const maxSubject = 72

// subjectForm matches a path or topic, a colon, and the change.
var subjectForm = regexp.MustCompile(`^[A-Za-z0-9_.*/{}, -]+: [^ ].*[^. ]$`)

// checkCommits takes a log of abbreviated hash, subject and body, separated by 0 and ended by 1.
func checkCommits(log string) (bad []string) {
	for entry := range strings.SplitSeq(log, "\x01") {
		f := strings.SplitN(strings.TrimLeft(entry, "\n"), "\x00", 3)
		if len(f) < 3 {
			continue
		}
		hash, subject, body := f[0], f[1], f[2]
		var why []string
		if n := utf8.RuneCountInString(subject); n > maxSubject {
			why = append(why, fmt.Sprintf("the subject has %d characters, at most %d", n, maxSubject))
		}
		if !subjectForm.MatchString(subject) {
			why = append(why, "the subject is not \"path: imperative\" without a full stop")
		}
		if strings.Contains(subject, ";") {
			why = append(why, "a semicolon joins two changes")
		}
		if strings.TrimSpace(body) == "" {
			why = append(why, "there is no body that says why")
		}
		if why != nil {
			bad = append(bad, fmt.Sprintf("commit %s %q: %s", hash, subject, strings.Join(why, ", ")))
		}
	}
	return bad
}
