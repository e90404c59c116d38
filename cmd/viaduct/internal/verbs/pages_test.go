package verbs

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
)

// shownCommand matches a command of viaduct. The match ends at an operator of the shell or at a
// backquote.
var shownCommand = regexp.MustCompile("(?:^|[ `$])viaduct ([a-z][^`|&;>]*)")

// quoted matches an argument in single quotes, which may hold the words of another command.
var quoted = regexp.MustCompile(`'[^']*'`)

// checkCommand returns the mistakes in the words after "viaduct": an unknown verb or flag. It does
// not check values, because pages have placeholders such as DIR and URL.
func checkCommand(root *cobra.Command, words []string) (wrong []string) {
	c := root
	for len(words) > 0 {
		next, _, err := c.Find(words[:1])
		if err != nil || next == c {
			break
		}
		c, words = next, words[1:]
	}
	if c == root {
		return []string{"there is no verb " + words[0]}
	}
	c.InitDefaultHelpFlag()
	for _, w := range words {
		w = strings.Trim(w, "[].,:'\"()")
		switch name, isLong := strings.CutPrefix(w, "--"); {
		case w == "--": // the words of the program to run follow
			return wrong
		case isLong:
			name, _, _ = strings.Cut(name, "=")
			name, _, _ = strings.Cut(name, "[")
			if c.Flag(name) == nil {
				wrong = append(wrong, c.CommandPath()+" has no --"+name)
			}
		case len(w) == 2 && w[0] == '-' && w[1] >= 'A':
			if c.Flags().ShorthandLookup(w[1:]) == nil {
				wrong = append(wrong, c.CommandPath()+" has no "+w)
			}
		}
	}
	return wrong
}

func TestCheckCommand(t *testing.T) {
	root := newRoot(&shell.Env{Stdout: io.Discard, Stderr: io.Discard, Log: slog.New(slog.DiscardHandler)})
	for line, want := range map[string]string{
		"get URL/PATH -o FILE [--resume]":             "",
		"portmap serve --map '*:5000=192.0.2.1:7000'": "",
		"run --rdma -- rping --nothing":               "",
		"get URL --nothing=1":                         "viaduct get has no --nothing",
		"get URL -x":                                  "viaduct get has no -x",
		"fetch URL":                                   "there is no verb fetch",
	} {
		if got := strings.Join(checkCommand(root, strings.Fields(line)), ", "); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestPageFlags: all verbs and flags in the commands the pages show or mention exist.
func TestPageFlags(t *testing.T) {
	root := newRoot(&shell.Env{Stdout: io.Discard, Stderr: io.Discard, Log: slog.New(slog.DiscardHandler)})
	const top = "../../../../"
	seen := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/guide/*.md", "docs/lab/*.md"} {
		pages, err := filepath.Glob(top + pattern)
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(pages), err)
		}
		for _, page := range pages {
			if filepath.Base(page) == "CHANGELOG.md" {
				continue
			}
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for i, l := range strings.Split(string(text), "\n") {
				l, _, _ = strings.Cut(l, " # ") // drop a comment of the shell
				isCode := strings.HasPrefix(l, "    ") || strings.HasPrefix(l, "$ ") || strings.HasPrefix(l, "viaduct ")
				for _, m := range shownCommand.FindAllStringSubmatchIndex(l, -1) {
					if !isCode && l[m[0]] != '`' || strings.HasPrefix(l[m[2]:], "run: ") {
						continue // a sentence of the page, or output of the command
					}
					seen++
					for _, wrong := range checkCommand(root, strings.Fields(quoted.ReplaceAllString(l[m[2]:m[3]], "''"))) {
						t.Errorf("%s:%d: %s", strings.TrimPrefix(page, top), i+1, wrong)
					}
				}
			}
		}
	}
	if seen < 150 {
		t.Errorf("%d commands found on all pages", seen)
	}
}
