// Command words checks the commit messages, comments and pages since the last release.
//
//	go run ./internal/tools/words            commits and lines since the last release tag
//	go run ./internal/tools/words -since REV  since a revision
//
// It refuses
//   - a commit whose subject is not "path: imperative", is longer than 72 characters or joins two
//     changes by a semicolon, and one without a body;
//   - a line of a comment or of a page that is wider than 120 columns. Tables and code are exempt.
//
// Words also counts, per 10,000 words, habits of English that make a reader go back, and names the
// paragraphs with most habits. A high count is a hint and no error.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// firstRule is the last commit made without the rules. It counts as a release tag until a release
// is tagged.
const firstRule = "f9ea9f4"

func main() {
	since := flag.String("since", "", "the revision after which everything is looked at (default: the last release tag)")
	worst := flag.Int("worst", 5, "how many of the paragraphs with most habits are printed")
	flag.Parse()
	ok, err := run(*since, *worst)
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(since string, worst int) (ok bool, err error) {
	if since == "" {
		if since, err = git("describe", "--tags", "--abbrev=0", "--match", "v*"); err != nil {
			since = firstRule
		}
		since = strings.TrimSpace(since)
	}
	if _, err := git("rev-parse", "--verify", "--quiet", since+"^{commit}"); err != nil {
		fmt.Printf("SKIPPED: this clone does not have the history since %s: no commit and no line was looked at\n", since)
		return true, nil
	}
	log, err := git("log", "--no-merges", "--format=%h%x00%s%x00%b%x01", since+"..HEAD")
	if err != nil {
		return false, err
	}
	diff, err := git("diff", "-U0", "--no-color", since, "HEAD", "--", "*.go", "*.md",
		":!docs/conformance*", ":!docs/mutation.md", ":!docs/requirements", ":!docs/lab", ":!LICENSE")
	if err != nil {
		return false, err
	}
	bad := checkCommits(log)
	added := parseDiff(diff, func(file string) string {
		text, _ := git("show", "HEAD:"+file)
		return text
	})
	bad = append(bad, checkWidths(added)...)
	for _, b := range bad {
		fmt.Println(b)
	}
	for _, l := range count(added, worst) {
		fmt.Println(l)
	}
	return len(bad) == 0, nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return string(out), nil
}
