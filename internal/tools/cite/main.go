package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"viaduct/internal/tools/register"
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
		check   = flags.Bool("check", false, "list the open rows, and fail if "+indexPage+" or its pages are stale")
		helpers = flags.Bool("helpers", false, "list the rows cited in helpers of test files")
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
		if *root, err = register.ModuleRoot(); err != nil {
			fmt.Fprintln(stderr, "cite:", err)
			return 1
		}
	}
	g, problems, err := register.Load(*root)
	if err != nil {
		fmt.Fprintln(stderr, "cite:", err)
		return 1
	}
	want, err := filter(g, *only)
	if err != nil {
		fmt.Fprintln(stderr, "cite:", err)
		return 2
	}
	switch {
	case *write:
		if err := writePages(g, *root); err != nil {
			fmt.Fprintln(stderr, "cite:", err)
			return 1
		}
	case *helpers:
		printHelpers(g, stdout, want)
	case *check:
		printMissing(g, stdout, want)
		shown, err := docTags(g, *root)
		if err != nil {
			fmt.Fprintln(stderr, "cite:", err)
			return 1
		}
		problems = append(problems, shown...)
		for _, name := range stale(g, *root) {
			problems = append(problems, name+": stale (go run ./internal/tools/cite -write)")
		}
	case *summary:
		printSummary(g, stdout, want)
	default:
		printMissing(g, stdout, want)
		fmt.Fprintln(stdout)
		printSummary(g, stdout, want)
	}
	for _, p := range problems {
		fmt.Fprintln(stderr, p)
	}
	if len(problems) > 0 {
		return 1
	}
	return 0
}

// filter returns a filter that accepts the keys in the list; an empty list accepts every key.
func filter(g *register.Register, only string) (func(string) bool, error) {
	if only == "" {
		return func(string) bool { return true }, nil
	}
	keys := strings.Split(only, ",")
	for _, k := range keys {
		if !g.Key[k] {
			return nil, fmt.Errorf("no document has the key %q", k)
		}
	}
	return func(k string) bool { return slices.Contains(keys, k) }, nil
}
