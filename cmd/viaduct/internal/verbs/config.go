package verbs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/portmap"
	"viaduct/samehost"
)

// services are the verbs with --config; each is a table of the file.
var services = []string{"serve", "proxy", "echo", "fabric", "portmap.serve"}

// configFlag names the flag with the configuration file. defaultFlag names the flag with defaults
// for settings absent from the command line and the file.
const (
	configFlag  = "config"
	defaultFlag = "default"
)

// A setting is a key of a configuration file.
type setting struct {
	table string // empty before the first table
	key   string
	line  int
	kind  unstable.Kind // kind of the value
	text  string        // the value if it is no array
	list  []string      // the value if it is an array of strings
}

// A mistake is an error in a line of a configuration file.
type mistake struct {
	file string
	line int
	text string
}

func (m mistake) String() string { return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.text) }

// readConfig reads a file in TOML. tables has the line of each table. wrong has the mistakes of
// syntax; settings is nil if the file could not be parsed. err reports an unreadable file.
func readConfig(file string) (settings []setting, tables map[string]int, wrong []mistake, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, nil, err
	}
	// Unmarshal parses the whole language and finds duplicate keys. The loop below finds the lines.
	var all map[string]any
	if err := toml.Unmarshal(b, &all); err != nil {
		line := 1
		if de, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ = de.Position()
		}
		return nil, nil, []mistake{{file, line, strings.TrimPrefix(err.Error(), "toml: ")}}, nil
	}
	var p unstable.Parser
	p.Reset(b)
	table, tables := "", map[string]int{}
	for p.NextExpression() {
		x := p.Expression()
		name, line := nameOf(&p, x)
		switch x.Kind {
		case unstable.Table:
			table = name
			tables[table] = line
		case unstable.ArrayTable:
			wrong = append(wrong, mistake{file, line,
				fmt.Sprintf("[[%s]]: a table is there once, as [%s]", name, name)})
			table = name
		case unstable.KeyValue:
			v := x.Value()
			s := setting{table: table, key: name, line: line, kind: v.Kind, text: string(v.Data)}
			if v.Kind == unstable.Array {
				for it := v.Children(); it.Next(); {
					if n := it.Node(); n.Kind == unstable.String {
						s.list = append(s.list, string(n.Data))
					} else if n.Kind != unstable.Comment {
						s.kind = unstable.Invalid
					}
				}
			}
			settings = append(settings, s)
		}
	}
	return settings, tables, wrong, p.Error()
}

// nameOf returns the dotted name and the line of a table or a key.
func nameOf(p *unstable.Parser, x *unstable.Node) (name string, line int) {
	var parts []string
	for it := x.Key(); it.Next(); {
		n := it.Node()
		if line == 0 {
			line = p.Shape(n.Raw).Start.Line
		}
		parts = append(parts, string(n.Data))
	}
	return strings.Join(parts, "."), line
}

// service returns the command of a table, or nil if the table belongs to no service.
func service(root *cobra.Command, table string) *cobra.Command {
	if !slices.Contains(services, table) {
		return nil
	}
	c, _, err := root.Find(strings.Split(table, "."))
	if err != nil {
		return nil
	}
	return c
}

// tableOf returns the table of a command, or "" if the command is no service.
func tableOf(c *cobra.Command) string {
	t := strings.ReplaceAll(strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" "), " ", ".")
	if !slices.Contains(services, t) {
		return ""
	}
	return t
}

// settable returns the flag set by a key, or nil if there is none. If c is nil, settable searches
// only the flags of all verbs.
func settable(root, c *cobra.Command, key string) *pflag.Flag {
	if key == configFlag || key == defaultFlag || key == "help" || key == "json" {
		return nil
	}
	if f := root.PersistentFlags().Lookup(key); f != nil || c == nil {
		return f
	}
	return c.Flags().Lookup(key)
}

// checkConfig returns the mistakes in a file. If c is not nil, it also sets the flags of c not set
// by the command line. The error is not nil if the file cannot be read.
func checkConfig(root, c *cobra.Command, file string) ([]mistake, error) {
	settings, tables, wrong, err := readConfig(file)
	if err != nil || settings == nil && wrong != nil {
		return wrong, err
	}
	add := func(line int, format string, a ...any) {
		wrong = append(wrong, mistake{file, line, fmt.Sprintf(format, a...)})
	}
	for t, line := range tables {
		if t != "portmap" && service(root, t) == nil {
			add(line, "[%s] is none of [%s]", t, strings.Join(services, "], ["))
		}
	}
	ours := ""
	if c != nil {
		ours = tableOf(c)
		if _, ok := tables[ours]; !ok {
			add(1, "there is no [%s]", ours)
		}
	}
	for _, s := range settings {
		of := service(root, s.table)
		if s.table != "" && of == nil {
			if s.table == "portmap" {
				add(s.line, "%s: keys of portmap stand in [portmap.serve]", s.key)
			}
			continue // the mistake in its table was already reported
		}
		f := settable(root, of, s.key)
		if f == nil {
			add(s.line, "%s", unknownKey(root, of, s))
			continue
		}
		set, list, err := s.value(f)
		if err == nil {
			for _, v := range append(list, set...) {
				if err = checkValue(s.table, s.key, v); err != nil {
					break
				}
			}
		}
		if err == nil && c != nil && (s.table == "" || s.table == ours) && !f.Changed {
			if own := c.Flags().Lookup(s.key); own != nil { // cobra has merged the flags of all verbs
				f = own
			}
			if sv, ok := f.Value.(pflag.SliceValue); ok {
				err = sv.Replace(append(list, set...))
			} else {
				err = f.Value.Set(set[0])
			}
		} else if err == nil {
			err = tryValue(f, set)
		}
		if err != nil {
			add(s.line, "%s: %v", s.key, err)
		}
	}
	slices.SortStableFunc(wrong, func(a, b mistake) int { return cmp.Compare(a.line, b.line) })
	return wrong, nil
}

// unknownKey returns the message for an unknown key. The message says whether the key belongs into
// the table of a service.
func unknownKey(root, of *cobra.Command, s setting) string {
	if s.table == "" && slices.ContainsFunc(services, func(t string) bool { return settable(root, service(root, t), s.key) != nil }) {
		return fmt.Sprintf("%s belongs into the table of a service, such as [serve]", s.key)
	}
	where := "before the first table"
	if s.table != "" {
		where = "of [" + s.table + "]"
	}
	return fmt.Sprintf("%s is no key %s", s.key, where)
}

// value returns the value of the key for flag f: one text, or a list if the flag may be repeated.
// The error reports a wrong type.
func (s setting) value(f *pflag.Flag) (one, list []string, err error) {
	want := "a string in quotes"
	kind := unstable.String
	switch f.Value.Type() {
	case "bool":
		want, kind = "true or false", unstable.Bool
	case "int", "uint8", "uint16", "uint64":
		want, kind = "a whole number without quotes", unstable.Integer
	case "duration":
		want = `a time in quotes, such as "10s"`
	case "stringArray":
		if s.kind == unstable.Array {
			return nil, s.list, nil
		}
		want = "a string in quotes, or a list of them in brackets"
	}
	if s.kind != kind {
		return nil, nil, fmt.Errorf("want %s", want)
	}
	return []string{s.text}, nil, nil
}

// tryValue returns an error if a flag does not accept a value. The flag keeps the old value.
func tryValue(f *pflag.Flag, v []string) error {
	if _, ok := f.Value.(pflag.SliceValue); ok || len(v) == 0 {
		return nil
	}
	was := f.Value.String()
	err := f.Value.Set(v[0])
	f.Value.Set(was)
	return err
}

// checkValue checks the value of a key when the file is read, so that a mistake is found before the
// service starts.
func checkValue(table, key, v string) error {
	switch key {
	case "log-level":
		return oneOf(v, "debug", "info", "warn", "error")
	case "log-format":
		return oneOf(v, "text", "json")
	case "tls-side":
		return oneOf(v, "both", "listen", "to")
	case "metrics", "join":
		return checkHostPort(v)
	case "max-file":
		_, err := addr.ParseSize(v)
		return err
	case "cache":
		_, err := portmap.ParsePmTime(v)
		return err
	case "map":
		return addMapping(portmap.NewRegistry(), v, 0)
	case "same-host":
		_, err := samehost.Parse(v)
		return err
	case "name":
		_, err := switchName(v)
		return err
	case "tls-pin":
		if b, err := hex.DecodeString(strings.ReplaceAll(v, ":", "")); err != nil || len(b) != sha256.Size {
			return errors.New("want 64 hex digits")
		}
	case "domain":
		if n, err := strconv.Atoi(v); err != nil || n < 1 || n > 239 {
			return fmt.Errorf("%s is not between 1 and 239", v)
		}
	case "listen", "to":
		if table == "fabric" || table == "portmap.serve" {
			return checkHostPort(v)
		}
		u, t, err := parse(v)
		if err == nil {
			err = noPath(u)
		}
		if err == nil && table == "proxy" && !t.IsStream() {
			err = fmt.Errorf("%s carries messages, not streams", u.Scheme)
		}
		return err
	}
	return nil
}

func checkHostPort(v string) error {
	if err := shell.CheckHostPort(v); err != nil {
		return fmt.Errorf("%q is not HOST:PORT", v)
	}
	return nil
}

func oneOf(v string, of ...string) error {
	if !slices.Contains(of, v) {
		return fmt.Errorf("%q is none of %s", v, strings.Join(of, ", "))
	}
	return nil
}

// addConfig adds the flags for a configuration file to the service verbs.
func addConfig(root *cobra.Command) {
	for _, t := range services {
		f := service(root, t).Flags()
		f.String(configFlag, "", "read the other flags from `FILE` (TOML); with -FILE, the file may be missing")
		f.StringArray(defaultFlag, nil,
			"default of a flag that neither the command line nor the file sets, `FLAG=VALUE`; may be repeated")
	}
}

// configure sets the flags of a service left unset by the command line: from the configuration
// file, and otherwise from the defaults of the command line.
func configure(cmd *cobra.Command) error {
	f := cmd.Flags().Lookup(configFlag)
	if f == nil || tableOf(cmd) == "" {
		return nil
	}
	defaults, err := cmd.Flags().GetStringArray(defaultFlag)
	if err != nil {
		return err
	}
	for _, d := range defaults {
		if err := setDefault(cmd, d); err != nil {
			return shell.Usagef("--%s %s: %v", defaultFlag, d, err)
		}
	}
	file, optional := strings.CutPrefix(f.Value.String(), "-")
	if file == "" && !optional {
		return nil
	}
	wrong, err := checkConfig(cmd.Root(), cmd, file)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(wrong) == 0 {
		return err
	}
	var lines []string
	for _, m := range wrong {
		lines = append(lines, m.String())
	}
	return shell.Usagef("%s", strings.Join(lines, "; "))
}

// setDefault sets the default FLAG=VALUE, unless the command line sets the flag. The file is read
// later and takes precedence.
func setDefault(cmd *cobra.Command, text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("want FLAG=VALUE")
	}
	f := settable(cmd.Root(), cmd, key)
	if f == nil {
		return fmt.Errorf("%s is no flag that can be set here", key)
	}
	if own := cmd.Flags().Lookup(key); own != nil {
		f = own
	}
	if f.Changed {
		return nil
	}
	return f.Value.Set(value)
}

func configCommand(e *shell.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "config check FILE",
		Short: "check a configuration file of the services",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("check is wanted: %w", unknownVerb(cmd, "verb of config", args[0]))
			}
			return shell.Usagef("check FILE is wanted")
		},
	}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "print the mistakes in a configuration file, line by line",
		Long: `Print the mistakes in a configuration file with FILE:LINE: unknown keys, values of
a wrong type, invalid values. The file is in TOML. Each service has a table:
[` + strings.Join(services, "], [") + `], with the names of
the verb's flags as keys. The flags of all verbs (log-level, metrics and so on)
may also precede the first table. A flag on the command line overrides the file.

  log-level = "info"
  [serve]
  root = "/srv/files"
  listen = ["vitcp://:3936/files", "tcp://:8080"]
  writable = true

viaduct serve --config FILE then uses the file. Secrets are in separate files,
which keys such as tls-key name.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			wrong, err := checkConfig(cmd.Root(), nil, args[0])
			if err != nil {
				return err
			}
			if err := printMistakes(e, args[0], wrong); err != nil || len(wrong) == 0 {
				return err
			}
			return shell.Hint(fmt.Errorf("%s has %d mistakes", args[0], len(wrong)),
				"they are listed by line; viaduct config check --help shows the form")
		},
	})
	return c
}

// printMistakes prints the mistakes in a configuration file, or that there are none.
func printMistakes(e *shell.Env, file string, wrong []mistake) error {
	if e.JSON {
		type entry struct {
			Line int    `json:"line"`
			Text string `json:"text"`
		}
		all := []entry{}
		for _, m := range wrong {
			all = append(all, entry{m.line, m.text})
		}
		return e.PrintJSON(struct {
			File     string  `json:"file"`
			Mistakes []entry `json:"mistakes"`
		}{file, all})
	}
	if len(wrong) == 0 {
		e.Printf("%s is right\n", file)
	}
	for _, m := range wrong {
		e.Printf("%s\n", m)
	}
	return nil
}
