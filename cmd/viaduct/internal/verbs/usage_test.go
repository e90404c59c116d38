package verbs

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
)

// TestForms: the forms of a command are the parts of Use, separated by " | " outside of brackets.
func TestForms(t *testing.T) {
	root := &cobra.Command{Use: "viaduct"}
	for use, want := range map[string][]string{
		"man DIR":               {"viaduct man DIR"},
		"stat [PID | URL]":      {"viaduct stat [PID | URL]"},
		"nc URL | nc -l URL":    {"viaduct nc URL", "viaduct nc -l URL"},
		"ladder FILE|- | --now": {"viaduct ladder FILE|-", "viaduct ladder --now"},
	} {
		c := &cobra.Command{Use: use}
		root.AddCommand(c)
		if got := forms(c); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", use, got, want)
		}
	}
}

// TestHelpFits: verbs and flags fit into columns of an 80-column terminal. Each flag has a name for
// its value, and a flag whose value is optional is shown as such.
func TestHelpFits(t *testing.T) {
	root := newRoot(shell.NewEnv())
	for _, c := range documented(root) {
		help := c.UsageString()
		_, lists, _ := strings.Cut(help, "\nFlags:\n")
		if c.HasAvailableSubCommands() {
			_, lists, _ = strings.Cut(help, "\nVerbs")
		}
		for l := range strings.SplitSeq(c.Long, "\n") {
			if utf8.RuneCountInString(l) > helpWidth && !strings.HasPrefix(l, " ") {
				t.Errorf("%s: a line of %d columns: %s", c.CommandPath(), utf8.RuneCountInString(l), l)
			}
		}
		for l := range strings.SplitSeq(lists, "\n") {
			if utf8.RuneCountInString(l) > helpWidth {
				t.Errorf("%s: a line of %d columns: %s", c.CommandPath(), utf8.RuneCountInString(l), l)
			}
			for _, no := range []string{" duration ", " uint8 ", " int ", " string ", `[="`} {
				if strings.Contains(l, no) {
					t.Errorf("%s: %q in %s", c.CommandPath(), no, l)
				}
			}
		}
	}
	for c, want := range map[string]string{"run": "--explain[=FILE] ", "ping": "-c, --count COUNT ", "fabric": "(default :3225)"} {
		cmd, _, _ := root.Find([]string{c})
		if !strings.Contains(strings.Join(strings.Fields(cmd.UsageString()), " "), want) {
			t.Errorf("help of %s without %q:\n%s", c, want, cmd.UsageString())
		}
	}
}
