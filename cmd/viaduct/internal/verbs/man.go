package verbs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
)

func manCommand(e *shell.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "write the manual pages of all verbs",
		Long: `Write the manual pages into DIR/man1 and DIR/man7, which are created if needed:
viaduct(1), one page per verb, such as viaduct-serve(1), and viaduct-urls(7).`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := 0
			for _, c := range documented(cmd.Root()) {
				dir := filepath.Join(args[0], "man"+section(c))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, pageName(c)+"."+section(c)), manPage(c), 0o644); err != nil {
					return err
				}
				n++
			}
			if e.JSON {
				return e.PrintJSON(struct {
					Directory string `json:"directory"`
					Pages     int    `json:"pages"`
				}{args[0], n})
			}
			e.Printf("%d pages in %s\n", n, args[0])
			return nil
		},
	}
}

// documented returns c and the commands below c with a page.
func documented(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" || sub.IsAdditionalHelpTopicCommand() {
			list = append(list, documented(sub)...)
		}
	}
	return list
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// section returns the section of the manual: 1 for commands, 7 for help topics.
func section(c *cobra.Command) string {
	if c.Runnable() || c.HasSubCommands() {
		return "1"
	}
	return "7"
}

// manPage returns the page of a command in the language of man(7). Its content is the command's
// help.
func manPage(c *cobra.Command) []byte {
	var b bytes.Buffer
	date := ""
	if t := buildTime(); !t.IsZero() {
		date = t.UTC().Format("2006-01-02")
	}
	fmt.Fprintf(&b, ".TH %s %s \"%s\" \"viaduct %s\" \"Viaduct\"\n", strings.ToUpper(roff(pageName(c))),
		section(c), date, roff(shell.Version()))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	if c.Runnable() {
		b.WriteString(".SH SYNOPSIS\n")
		for i, form := range forms(c) {
			if i > 0 {
				b.WriteString(".br\n")
			}
			fmt.Fprintf(&b, "\\fB%s\\fR%s\n", roff(c.CommandPath()), roff(strings.TrimPrefix(form, c.CommandPath())))
		}
	}
	b.WriteString(".SH DESCRIPTION\n")
	paragraphs(&b, c.Long)
	var verbs []*cobra.Command
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" || sub.IsAdditionalHelpTopicCommand() {
			verbs = append(verbs, sub)
		}
	}
	if len(verbs) > 0 {
		b.WriteString(".SH VERBS\n")
		for _, sub := range verbs {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(%s)\n%s\n", roff(pageName(sub)), section(sub), roff(sub.Short))
		}
	}
	exampleSection(&b, c.Example)
	flagSection(&b, "OPTIONS", c.LocalNonPersistentFlags())
	flagSection(&b, "OPTIONS OF ALL VERBS", c.Root().PersistentFlags())
	if c.Runnable() {
		b.WriteString(".SH EXIT STATUS\n0: done; 1: failed; 2: wrong usage. The last line on standard error has the reason and\na remedy.\n")
	}
	if !c.HasParent() {
		fmt.Fprintf(&b, ".SH ENVIRONMENT\n.TP\n\\fB%s\\fR\nNAME=VALUE,...: parameters of all SDP connections, see viaduct\\-urls(7).\n", transport.SDPEnvironment)
	}
	b.WriteString(".SH SEE ALSO\n")
	var also []string
	for p := c.Parent(); p != nil; p = p.Parent() {
		also = append(also, fmt.Sprintf("\\fB%s\\fR(1)", roff(pageName(p))))
	}
	if strings.Contains(c.Use, "URL") || !c.HasParent() {
		also = append(also, "\\fBviaduct\\-urls\\fR(7)")
	}
	if len(also) == 0 {
		also = []string{"\\fBviaduct\\fR(1)"}
	}
	b.WriteString(strings.Join(also, ",\n") + "\n")
	return b.Bytes()
}

// paragraphs writes text. It keeps indented lines unchanged.
func paragraphs(b *bytes.Buffer, text string) {
	asIs, open := false, true
	for _, line := range strings.Split(text, "\n") {
		indented := strings.HasPrefix(line, "  ")
		switch {
		case line == "":
			open = false
			continue
		case indented && !asIs:
			b.WriteString(".PP\n.nf\n")
		case !indented && asIs:
			b.WriteString(".fi\n.PP\n")
		case !open && asIs:
			b.WriteString("\n")
		case !open:
			b.WriteString(".PP\n")
		}
		asIs, open = indented, true
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") {
			b.WriteString(`\&`)
		}
		b.WriteString(roff(line) + "\n")
	}
	if asIs {
		b.WriteString(".fi\n")
	}
}

// exampleSection writes examples: their descriptions as paragraphs, their commands unchanged.
func exampleSection(b *bytes.Buffer, text string) {
	if text == "" {
		return
	}
	b.WriteString(".SH EXAMPLES\n")
	var page strings.Builder
	for _, line := range strings.Split(text, "\n") {
		if about, ok := strings.CutPrefix(line, "# "); ok {
			fmt.Fprintf(&page, "\n%s%s:\n\n", strings.ToUpper(about[:1]), about[1:])
		} else {
			page.WriteString("  " + line + "\n")
		}
	}
	paragraphs(b, strings.Trim(page.String(), "\n"))
}

func flagSection(b *bytes.Buffer, title string, fs *pflag.FlagSet) {
	if !fs.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, about := flagText(f)
		b.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(b, "\\fB\\-%s\\fR, ", roff(f.Shorthand))
		}
		fmt.Fprintf(b, "\\fB\\-\\-%s\\fR", roff(f.Name))
		if value != "" {
			fmt.Fprintf(b, "\\fI%s\\fR", roff(value))
		}
		fmt.Fprintf(b, "\n%s\n", roff(about))
	})
}

var roffEscapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// roff escapes text to be printed literally.
func roff(s string) string { return roffEscapes.Replace(s) }

// buildTime returns the time of the commit, so that the same source makes the same pages.
// SOURCE_DATE_EPOCH overrides the time of the commit. Without either, the time is zero.
func buildTime() time.Time {
	if n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		return time.Unix(n, 0)
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.time" {
				t, _ := time.Parse(time.RFC3339, s.Value)
				return t
			}
		}
	}
	return time.Time{}
}
