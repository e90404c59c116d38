package verbs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
)

// helpAsJSON prints the help of all commands as a document if --json is set.
func helpAsJSON(e *shell.Env, root *cobra.Command) {
	text := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if !e.JSON {
			text(c, args)
			return
		}
		var b bytes.Buffer
		c.SetOut(&b)
		text(c, args)
		c.SetOut(nil)
		e.PrintJSON(struct {
			Help string `json:"help"`
		}{b.String()})
	})
}

// urlsTopic is "viaduct help urls". A command that runs nothing is a topic of the help.
func urlsTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "urls",
		Short: "addresses and every parameter that each transport takes",
		Long:  urlsText(),
	}
}

// urlsText returns the table of package addr for a terminal.
func urlsText() string {
	var b strings.Builder
	b.WriteString(`An address names a transport and a host, for some transports a discriminator,
and for verbs that move files the path of a file:

`)
	for _, s := range built() {
		fmt.Fprintf(&b, "  %-33s %s", s.Form(), s.About)
		if s.DefaultPort != 0 {
			fmt.Fprintf(&b, " (port %d)", s.DefaultPort)
		}
		b.WriteString("\n")
	}
	b.WriteString(`
HOST is a name, an IPv4 address, or an IPv6 address in brackets. With port 0, a
listener picks a free port. DISCRIMINATOR is 1 to 16 bytes of text, or 0x and hex. A
file's PATH comes next, and parameters last: ?NAME=VALUE&NAME=VALUE (quote the
& for a shell). A SIZE is bytes, with an optional K, M, G or T (1024s).
`)
	shared := map[string]bool{}
	for _, s := range built() {
		if len(s.Params) == 0 {
			fmt.Fprintf(&b, "\nParameters of %s: none\n", s.Name)
			continue
		}
		fmt.Fprintf(&b, "\nParameters of %s:\n", s.Name)
		if s.Name == "fcvi" && shared["vitcp"] {
			b.WriteString("  the parameters of vitcp, and\n")
		}
		for _, p := range s.Params {
			if v := addr.SchemeOf("vitcp"); s.Name == "fcvi" && shared["vitcp"] && v.Param(p.Name) != nil {
				continue
			}
			fmt.Fprintf(&b, "  %s=%s  [%s]\n%s", p.Name, p.Form(), strings.Join(facts(&p), "; "),
				wrap(p.About, "      ", 78))
		}
		shared[s.Name] = true
	}
	fmt.Fprintf(&b, `
%s=NAME=VALUE,... in the environment sets parameters of all SDP
connections, those from send-policy on; keepalive and setup-timeout (times) and
congestion (a name) too.
`, transport.SDPEnvironment)
	return strings.TrimRight(b.String(), "\n")
}

// URLsMarkdown returns the table of package addr for the guide.
func URLsMarkdown() string {
	var b strings.Builder
	for _, s := range built() {
		fmt.Fprintf(&b, "### `%s`: %s\n\n", s.Form(), s.About)
		if len(s.Params) == 0 {
			b.WriteString("No parameters.\n\n")
			continue
		}
		b.WriteString("| parameter | value | default | |\n|---|---|---|---|\n")
		for _, p := range s.Params {
			form := "`" + strings.Join(strings.Split(p.Form(), "|"), "`, `") + "`"
			if r := p.Range(); r != "" {
				form = strings.ToLower(p.Form()) + ", " + r
			}
			about, def := p.About, p.Default
			if p.Dialer {
				about = strings.TrimSuffix(about, ".") + " (only for the side that connects)."
			}
			if t := strings.TrimSuffix(strings.TrimPrefix(def, "("), ")"); t != def {
				def = t
			} else {
				def = "`" + def + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", p.Name, form, def, about)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// built returns the transports of this build, in the order of the table.
func built() []addr.Scheme {
	names := transport.Names()
	var list []addr.Scheme
	for _, s := range addr.Schemes {
		if slices.Contains(names, s.Name) {
			list = append(list, s)
		}
	}
	return list
}

// facts returns default, range and side of a parameter.
func facts(p *addr.Param) []string {
	f := []string{"default " + strings.TrimSuffix(strings.TrimPrefix(p.Default, "("), ")")}
	if r := p.Range(); r != "" {
		f = append(f, r)
	}
	if p.Dialer {
		f = append(f, "connecting side only")
	}
	return f
}

// wrap breaks text into lines of at most width columns that begin with indent.
func wrap(text, indent string, width int) string {
	var b strings.Builder
	n := 0
	for _, w := range strings.Fields(text) {
		switch {
		case n == 0:
			b.WriteString(indent)
			n = len(indent)
		case n+1+len(w) > width:
			b.WriteString("\n" + indent)
			n = len(indent)
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(w)
		n += len(w)
	}
	return b.String() + "\n"
}
