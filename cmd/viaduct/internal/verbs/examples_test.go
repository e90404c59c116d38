package verbs

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
)

// shellWords splits a command line into commands, and the commands into words. It knows single
// quotes, the operators | & && ; and redirections. Redirections are dropped.
func shellWords(line string) (commands [][]string) {
	var words []string
	var word strings.Builder
	quoted, redirect, has := false, false, false
	end := func() {
		if has && !redirect {
			words = append(words, word.String())
		}
		redirect = redirect && !has
		word.Reset()
		has = false
	}
	for _, r := range line {
		switch {
		case r == '\'':
			quoted, has = !quoted, true
		case quoted:
			word.WriteRune(r)
		case r == ' ':
			end()
		case strings.ContainsRune("|&;", r):
			end()
			if commands, words = append(commands, words), nil; len(commands[len(commands)-1]) == 0 {
				commands = commands[:len(commands)-1]
			}
		case r == '<' || r == '>':
			end()
			redirect = true
		default:
			word.WriteRune(r)
			has = true
		}
	}
	end()
	return append(commands, words)
}

// checkURLs reports the unparsable addresses among words.
func checkURLs(t *testing.T, line string, words []string) {
	t.Helper()
	for _, w := range words {
		if u, err := url.Parse(w); err != nil || addr.SchemeOf(u.Scheme) == nil || u.Host == "" && u.Path == "" {
			continue
		}
		if _, err := addr.Parse(strings.NewReplacer("*", "x").Replace(w)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// checkExample runs the parser of the command line over an example.
func checkExample(t *testing.T, line string) {
	t.Helper()
	for _, words := range shellWords(line) {
		for len(words) > 0 && strings.Contains(words[0], "=") { // variables of the environment
			words = words[1:]
		}
		if len(words) == 0 || words[0] != "viaduct" {
			continue
		}
		c, args, err := newRoot(shell.NewEnv()).Find(words[1:])
		if err == nil {
			err = c.ParseFlags(args)
		}
		if err == nil {
			err = c.ValidateArgs(c.Flags().Args())
		}
		if err != nil || !c.HasParent() {
			t.Errorf("%s: %v (%s)", line, err, c.CommandPath())
			continue
		}
		checkURLs(t, line, c.Flags().Args())
		c.Flags().Visit(func(f *pflag.Flag) {
			if list, ok := f.Value.(pflag.SliceValue); ok {
				checkURLs(t, line, list.GetSlice())
			} else {
				checkURLs(t, line, []string{f.Value.String()})
			}
		})
	}
}

// TestExamples: each manual page has examples. Each example has a description, fits on a terminal,
// and is a valid command line with valid addresses.
func TestExamples(t *testing.T) {
	root := newRoot(shell.NewEnv())
	var paths []string
	for _, c := range documented(root) {
		paths = append(paths, c.CommandPath())
		if !strings.HasPrefix(c.Example, "# ") {
			t.Errorf("%s: its examples begin with %.40q, not with a description", c.CommandPath(), c.Example)
		}
		if page := string(manPage(c)); strings.Count(page, ".SH EXAMPLES\n") != 1 {
			t.Errorf("%s: its page has no examples", c.CommandPath())
		}
		for line := range strings.SplitSeq(strings.ReplaceAll(c.Example, "\\\n", " "), "\n") {
			if !strings.HasPrefix(line, "# ") {
				checkExample(t, line)
			}
		}
		for line := range strings.SplitSeq(c.Example, "\n") {
			if len(line)+2 > helpWidth {
				t.Errorf("%s: an example of %d columns: %s", c.CommandPath(), len(line)+2, line)
			}
		}
	}
	for path := range examples() {
		if !slices.Contains(paths, path) {
			t.Errorf("examples of %s, which is no command", path)
		}
	}
}

// TestGroups: each verb is in a single group of the help, and each group names only verbs.
func TestGroups(t *testing.T) {
	root := newRoot(shell.NewEnv())
	seen := map[string]int{}
	for _, g := range groups() {
		for _, v := range g.verbs {
			seen[v]++
		}
	}
	for _, c := range root.Commands() {
		if c.IsAdditionalHelpTopicCommand() || !c.IsAvailableCommand() && c.Name() != "help" {
			continue
		}
		if seen[c.Name()] != 1 || c.GroupID == "" {
			t.Errorf("%s is in %d groups", c.Name(), seen[c.Name()])
		}
		delete(seen, c.Name())
	}
	for v := range seen {
		t.Errorf("%s is in a group and no verb", v)
	}
}
