package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("cite", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		root    = flags.String("C", "", "root of the module (default: the one around the current directory)")
		only    = flags.String("only", "", "comma-separated keys to report, as MPA,MPA2,I")
		summary = flags.Bool("summary", false, "print one line per document")
		write   = flags.Bool("write", false, "write "+indexPage+" and its pages")
		check   = flags.Bool("check", false, "fail if "+indexPage+" or its pages are stale")
	)
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "cite: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if *root == "" {
		var err error
		if *root, err = moduleRoot(); err != nil {
			fmt.Fprintln(stderr, "cite:", err)
			return 1
		}
	}
	dir := filepath.Join(*root, "docs", "requirements")
	g, err := readRegister(dir)
	if err != nil {
		fmt.Fprintln(stderr, "cite:", err)
		return 1
	}
	var wanted func(string) bool
	if wanted, err = g.wanted(*only); err != nil {
		fmt.Fprintln(stderr, "cite:", err)
		return 2
	}
	problems, err := g.readExceptions(filepath.Join(dir, "exceptions.md"))
	if err != nil {
		fmt.Fprintln(stderr, "cite:", err)
		return 1
	}
	found, err := g.scan(*root)
	if err != nil {
		fmt.Fprintln(stderr, "cite:", err)
		return 1
	}
	problems = append(problems, found...)

	switch {
	case *write:
		if err := g.write(*root); err != nil {
			fmt.Fprintln(stderr, "cite:", err)
			return 1
		}
	case *check:
		for _, name := range g.stale(*root) {
			problems = append(problems, name+": stale (go run ./internal/tools/cite -write)")
		}
	case *summary:
		g.summary(stdout, wanted)
	default:
		g.missing(stdout, wanted)
		fmt.Fprintln(stdout)
		g.summary(stdout, wanted)
	}
	for _, p := range problems {
		fmt.Fprintln(stderr, p)
	}
	if len(problems) > 0 {
		return 1
	}
	return 0
}

// wanted returns a filter for the keys in the list only; an empty list lets
// everything pass.
func (g *register) wanted(only string) (func(string) bool, error) {
	if only == "" {
		return func(string) bool { return true }, nil
	}
	keys := strings.Split(only, ",")
	for _, k := range keys {
		if !g.key[k] {
			return nil, fmt.Errorf("no document has the key %q", k)
		}
	}
	return func(k string) bool { return slices.Contains(keys, k) }, nil
}

// moduleRoot finds the directory with go.mod at or above the current one.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod at or above the current directory")
		}
		dir = up
	}
}
