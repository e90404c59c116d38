package verbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"viaduct/cmd/viaduct/internal/shell"
)

// TestConfigFlags: a configuration file can set every flag of a service.
func TestConfigFlags(t *testing.T) {
	samples := map[string]string{"log-level": "debug", "log-format": "json", "metrics": ":0",
		"same-host": "auto", "name": "20:00:00:00:00:00:00:01",
		"tls-pin": strings.Repeat("0", 64), "max-file": "1K", "cache": "never", "map": ":1=:2", "to": "tcp://h:1", "tls-side": "to", "join": "h:1", "listen": "tcp://h:1"}
	for _, table := range services {
		root := newRoot(shell.NewEnv())
		c := service(root, table)
		text := "[" + table + "]\n"
		var names []string
		c.InheritedFlags()
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if settable(root, c, f.Name) == nil {
				return
			}
			v := strconv.Quote(samples[f.Name])
			switch f.Value.Type() {
			case "bool":
				v = "true"
			case "int", "uint8":
				v = "9"
			case "duration":
				v = `"9s"`
			}
			if f.Name == "listen" && (table == "fabric" || table == "portmap.serve") {
				v = `":9"`
			}
			text += f.Name + " = " + v + "\n"
			names = append(names, f.Name)
		})
		file := filepath.Join(t.TempDir(), "f")
		os.WriteFile(file, []byte(text), 0o600)
		wrong, err := checkConfig(root, c, file)
		if err != nil || len(wrong) > 0 || len(names) < 5 {
			t.Errorf("%s: %v %v\n%s", table, err, wrong, text)
		}
		for _, n := range names {
			if f := c.Flags().Lookup(n); samples[n] != "" && f.Value.String() != samples[n] &&
				f.Value.String() != "["+samples[n]+"]" && n != "listen" ||
				f.Value.Type() == "bool" && f.Value.String() != "true" {
				t.Errorf("%s %s is %q", table, n, f.Value.String())
			}
		}
	}
}
