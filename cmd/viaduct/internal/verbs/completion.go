package verbs

import (
	"context"
	_ "embed"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/bench"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/status"
)

//go:embed completion.bash
var bashCompletion string

func completionCommand(e *shell.Env) *cobra.Command {
	shells := map[string]func(*cobra.Command) error{
		"bash": func(*cobra.Command) error { e.Printf("%s", bashCompletion); return nil },
		"zsh":  func(root *cobra.Command) error { return root.GenZshCompletion(e.Stdout) },
		"fish": func(root *cobra.Command) error { return root.GenFishCompletion(e.Stdout, true) },
	}
	names := slices.Sorted(maps.Keys(shells))
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "a script that completes command lines in a shell",
		Long: `Print a script that completes verbs, flags, addresses and their parameters.

  bash  viaduct completion bash >/etc/bash_completion.d/viaduct
  zsh   viaduct completion zsh >"${fpath[1]}/_viaduct"
  fish  viaduct completion fish >~/.config/fish/completions/viaduct.fish

A new shell uses it.`,
		Args: usageArgs(func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || shells[args[0]] == nil {
				return shell.Usagef("one of %s is wanted", strings.Join(names, ", "))
			}
			return nil
		}),
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if e.JSON {
				return shell.Usagef("a script is no JSON: leave --json out")
			}
			return shells[args[0]](cmd.Root())
		},
	}
}

// complete makes all commands complete their arguments and flag values, according to the names in
// the usage line and in the help of the flag.
func complete(c *cobra.Command) {
	if c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 && c.HasParent() && !c.HasSubCommands() {
		names := operands(c.Use)
		c.ValidArgsFunction = func(c *cobra.Command, args []string, word string) ([]cobra.Completion,
			cobra.ShellCompDirective) {
			if len(names) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			listens := false
			if f := c.Flags().Lookup("listen"); f != nil && f.Value.Type() == "bool" {
				listens = f.Value.String() == "true"
			}
			return completeOperand(c.Context(), names[min(len(args), len(names)-1)], word, listens)
		}
	}
	add := func(f *pflag.Flag) {
		if _, there := c.GetFlagCompletionFunc(f.Name); there || f.Value.Type() == "bool" {
			return
		}
		name, _ := pflag.UnquoteUsage(f)
		c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if words := flagWords(c.Name(), f.Name); words != nil {
				return lists(words, word)
			}
			return completeOperand(c.Context(), name, word, f.Name == "listen")
		})
	}
	c.LocalNonPersistentFlags().VisitAll(add)
	c.PersistentFlags().VisitAll(add)
	for _, sub := range c.Commands() {
		complete(sub)
	}
}

// operands returns the words of a usage line without the verb, and without flags and their values.
func operands(use string) (names []string) {
	use, _, _ = strings.Cut(use, " | ")
	words := strings.Fields(use)[1:]
	for i := 0; i < len(words); i++ {
		w := strings.Trim(words[i], "[]")
		switch {
		case w == "...":
		case strings.HasPrefix(w, "-") && w != "--":
			if !strings.HasSuffix(words[i], "]") && i+1 < len(words) {
				i++ // skip the value of the flag
			}
		case w != "--":
			names = append(names, w)
		}
	}
	return names
}

// completeOperand completes an operand by the name in the usage line.
func completeOperand(ctx context.Context, name, word string, listens bool) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch {
	case strings.Contains(name, "URL"):
		return completeURL(ctx, word, listens)
	case strings.Contains(name, "FILE"), strings.HasPrefix(name, "PROGRAM"):
		return nil, cobra.ShellCompDirectiveDefault
	case strings.Contains(name, "DIR"):
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// flagWords returns the values of flags with only a few, and nil for all other flags.
func flagWords(verb, flag string) []string {
	switch flag {
	case "log-level":
		return []string{"debug", "info", "warn", "error"}
	case "log-format":
		return []string{"text", "json"}
	case "tls-side":
		return []string{"both", "listen", "to"}
	case "transports":
		return transport.Names()
	case "ops":
		return append(slices.Clone(bench.Ops), "all")
	}
	return nil
}

// lists completes the last word of a list with commas. It does not offer words already in the list.
func lists(words []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	head := word[:strings.LastIndex(word, ",")+1]
	var out []cobra.Completion
	for _, w := range words {
		if !slices.Contains(strings.Split(head, ","), w) && strings.HasPrefix(w, word[len(head):]) {
			out = append(out, head+w)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeURL completes an address: transport, this host, and names and values of parameters.
func completeURL(ctx context.Context, word string, listens bool) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	const more = cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	offer := func(s, about string) {
		if strings.HasPrefix(s, word) {
			out = append(out, cobra.CompletionWithDesc(s, about))
		}
	}
	name, rest, ok := strings.Cut(word, "://")
	if !ok {
		for _, s := range built() {
			offer(s.Name+"://", s.About)
		}
	}
	if !listens && !strings.Contains(rest, "?") {
		for _, r := range running(ctx) {
			offer(r.url, r.program)
		}
	}
	if !ok {
		return out, more
	}
	s := addr.SchemeOf(name)
	if s == nil || !slices.Contains(transport.Names(), name) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	base, query, ok := strings.Cut(rest, "?")
	if !ok {
		if !strings.ContainsAny(base, "/") {
			for _, host := range []string{"127.0.0.1", "[::1]", "localhost"} {
				offer(name+"://"+host+":", "this host")
			}
		}
		return out, more
	}
	given := strings.Split(query, "&")
	last := given[len(given)-1]
	head := strings.TrimSuffix(word, last)
	if k, v, ok := strings.Cut(last, "="); ok {
		p := s.Param(k)
		if p == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, w := range p.Words {
			if strings.HasPrefix(w, v) {
				out = append(out, head+k+"="+w)
			}
		}
		return out, more
	}
	for _, p := range s.Params {
		used := slices.ContainsFunc(given, func(g string) bool { return strings.HasPrefix(g, p.Name+"=") })
		if !used && !(p.Dialer && listens) {
			offer(head+p.Name+"=", p.About)
		}
	}
	return out, more
}

// A listener is an address where a process of this user listens.
type listener struct{ url, program string }

// running returns the listeners of this user's processes as addresses. A wildcard address is
// replaced by an address of this host.
func running(ctx context.Context) (list []listener) {
	ps, err := status.List(ctx, "", false)
	if err != nil {
		return nil // completion must not print errors
	}
	for _, p := range ps {
		for _, l := range p.Listeners {
			u, err := addr.Parse(l.URL)
			if err != nil {
				continue // not an address of this command
			}
			if ip, err := netip.ParseAddr(u.Host); err == nil && ip.IsUnspecified() {
				u.Host = "localhost"
			}
			at := u.Query.Get("fabric")
			u.Query = nil // the other parameters concern the listener only
			if at != "" {
				u.Query = url.Values{"fabric": {at}}
			}
			list = append(list, listener{u.String(), p.Program})
		}
	}
	return list
}
