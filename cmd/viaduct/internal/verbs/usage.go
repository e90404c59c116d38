package verbs

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the width of help texts in columns.
const helpWidth = 80

// usage writes the forms, subcommands and flags of a command.
func usage(c *cobra.Command) error {
	w := c.OutOrStderr()
	fmt.Fprintln(w, "Usage:")
	if !c.HasParent() {
		fmt.Fprintf(w, "  %s VERB [flags]\n", c.Name())
	} else if c.Runnable() {
		for _, f := range forms(c) {
			fmt.Fprintf(w, "  %s [flags]\n", f)
		}
	}
	if c.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n  %s\n", strings.ReplaceAll(c.Example, "\n", "\n  "))
	}
	verbs := map[string][][2]string{}
	var topics [][2]string
	for _, s := range c.Commands() {
		switch row := [2]string{"  " + s.Name(), s.Short}; {
		case s.IsAdditionalHelpTopicCommand():
			topics = append(topics, row)
		case s.IsAvailableCommand() || s.Name() == "help":
			verbs[s.GroupID] = append(verbs[s.GroupID], row)
		}
	}
	for _, g := range c.Groups() {
		columns(w, g.Title, verbs[g.ID])
	}
	columns(w, "Verbs", verbs[""])
	columns(w, "Topics of help", topics)
	columns(w, "Flags", flagRows(c.LocalFlags()))
	columns(w, "Flags of all verbs", flagRows(c.InheritedFlags()))
	if len(verbs) > 0 {
		fmt.Fprintf(w, "\n\"%s VERB --help\" lists the flags of a verb.\n", c.CommandPath())
	}
	return nil
}

// forms returns the ways to call a command, each with the full name of the command. In the Use of
// the command, " | " separates the forms.
func forms(c *cobra.Command) (list []string) {
	above := ""
	if c.HasParent() {
		above = c.Parent().CommandPath() + " "
	}
	for rest := c.Use; ; {
		i := alternative(rest)
		form := strings.TrimSpace(rest[:i])
		if form != c.Name() && !strings.HasPrefix(form, c.Name()+" ") {
			form = c.Name() + " " + form
		}
		list = append(list, above+form)
		if i == len(rest) {
			return list
		}
		rest = rest[i+len(" | "):]
	}
}

// alternative returns the index of the first " | " in s outside of brackets, or the length of s.
func alternative(s string) int {
	depth := 0
	for i := range len(s) {
		switch {
		case s[i] == '[':
			depth++
		case s[i] == ']':
			depth--
		case depth == 0 && strings.HasPrefix(s[i:], " | "):
			return i
		}
	}
	return len(s)
}

// columns writes rows of two columns below a title, and wraps long texts.
func columns(w io.Writer, title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0])+2)
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, r := range rows {
		text := wrap(r[1], strings.Repeat(" ", width), helpWidth)
		fmt.Fprintf(w, "%-*s%s", width, r[0], text[width:])
	}
}

// flagRows returns the flags of a set with their descriptions.
func flagRows(fs *pflag.FlagSet) (rows [][2]string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "      --" + f.Name
		if f.Shorthand != "" {
			name = "  -" + f.Shorthand + ", --" + f.Name
		}
		value, about := flagText(f)
		rows = append(rows, [2]string{name + value, about})
	})
	return rows
}

// flagText returns the name of a flag's value and the flag's description.
func flagText(f *pflag.Flag) (value, about string) {
	name, about := pflag.UnquoteUsage(f)
	switch {
	case name != "" && f.NoOptDefVal != "": // the flag may have no value
		value = "[=" + name + "]"
	case name != "":
		value = " " + name
	}
	if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" && d != "0s" {
		about += " (default " + d + ")"
	}
	return value, about
}

// longTexts wraps descriptions at helpWidth columns, except paragraphs with indented lines. A
// command without a description gets the short description as a sentence.
func longTexts(c *cobra.Command) {
	if c.Long == "" {
		c.Long = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	list := strings.Split(c.Long, "\n\n")
	for i, p := range list {
		if !strings.Contains("\n"+p, "\n ") {
			list[i] = strings.TrimSuffix(wrap(p, "", helpWidth), "\n")
		}
	}
	c.Long = strings.Join(list, "\n\n")
	for _, s := range c.Commands() {
		longTexts(s)
	}
}
