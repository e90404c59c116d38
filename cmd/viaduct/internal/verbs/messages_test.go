package verbs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
)

// speaking are the directories whose messages users may see.
var speaking = []string{"cmd/viaduct", "iwarp", "vitcp", "fcvi", "sdp", "vi", "roce", "portmap",
	"registry", "samehost", "internal/fc", "internal/frameio",
	"internal/sdpcore", "internal/sock", "internal/viplconf"}

// TestMessagesNameNoFields: no message to the user names a field of a Go type.
func TestMessagesNameNoFields(t *testing.T) {
	fields := map[string]bool{}
	var texts []literal
	for _, dir := range speaking {
		for _, f := range parsed(t, dir) {
			texts = append(texts, f.texts...)
			for _, name := range f.fields {
				fields[name] = true
			}
		}
	}
	// Only names with a capital letter inside, because others may be English words.
	compound := regexp.MustCompile(`\b[A-Z]+[a-z0-9]+(?:[A-Z]+[a-z0-9]*)+\b`)
	selector := regexp.MustCompile(`\b[A-Z]\w*[a-z]\w*\.[A-Z]\w*[a-z]\w*\b`)
	// Fields of messages on the wire are allowed, with the names in the specifications.
	wire := []string{"MaxAdverts", "LocIRD", "LocORD", "NonDiscards", "MaxUnacked", "MaxTransferSize", "PmTime"}
	for _, l := range texts {
		for _, word := range append(compound.FindAllString(l.text, -1), selector.FindAllString(l.text, -1)...) {
			if (fields[word] || strings.Contains(word, ".")) && !slices.Contains(wire, word) {
				t.Errorf("%s: %q names the Go field %s", l.at, l.text, word)
			}
		}
	}
	if len(texts) < 500 || len(fields) < 100 {
		t.Errorf("only %d messages and %d fields were found", len(texts), len(fields))
	}
}

// TestMessagesNameFlags: the flags and parameters in messages of the command exist.
func TestMessagesNameFlags(t *testing.T) {
	known := map[string]bool{"--help": true, "--config": true,
		"--security-opt": true, "--cap-add": true, "--mount-proc": true, // of other programs
		"?ca": true} // a parameter of a registry's address
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
		}
		for _, sub := range c.Commands() {
			add(sub)
		}
	}
	add(newRoot(shell.NewEnv()))
	for _, s := range addr.Schemes {
		for _, p := range s.Params {
			known["?"+p.Name] = true
		}
	}
	named := regexp.MustCompile(`(?:^|[\s("=])(--[a-z][a-z-]+|\?[a-z][a-z-]+)\b`)
	checked := 0
	for _, f := range parsed(t, "cmd/viaduct") {
		for _, l := range f.texts {
			for _, m := range named.FindAllStringSubmatch(l.text, -1) {
				if checked++; !known[m[1]] {
					t.Errorf("%s: %q names %s, which does not exist", l.at, l.text, m[1])
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d names were found", checked)
	}
}

// A literal is a text of several words: of an error, a hint, the log or the help.
type literal struct{ at, text string }

// A parsedFile holds the checked parts of a file.
type parsedFile struct {
	texts  []literal
	fields []string // the exported fields of its structs
}

// parsed parses the files of a directory of the repository, and of all subdirectories.
func parsed(t *testing.T, dir string) (all []parsedFile) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("../../../..", dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		var p parsedFile
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				for _, f := range n.Fields.List {
					for _, name := range f.Names {
						if name.IsExported() {
							p.fields = append(p.fields, name.Name)
						}
					}
				}
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil &&
					strings.Contains(s, " ") {
					at := set.Position(n.Pos())
					p.texts = append(p.texts, literal{fmt.Sprintf("%s:%d", filepath.ToSlash(at.Filename), at.Line), s})
				}
			}
			return true
		})
		all = append(all, p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
