package verbs

import (
	"context"
	"fmt"
	"path"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
)

// maxDepth bounds the depth of directories, because a symbolic link on the server may lead back up.
const maxDepth = 64

func lsCommand(e *shell.Env) *cobra.Command {
	var recursive bool
	var cf connFlags
	c := &cobra.Command{
		Use:   "ls URL[/PATH] [-r]",
		Short: "list a directory of a server",
		Long: `List a directory of a server, one name per line. Directories end in /. Files have
their size in bytes before the name. Entries that cannot be fetched (pipes, and
links that lead nowhere or out of the directory) have a - there. Names with
control characters, or that are not UTF-8, are quoted with escapes.

An element of PATH that exists on the server is taken literally. Otherwise it is
a pattern, in which * and [...] match names as in a shell, and ** matches any
number of directories. The matches are then listed. Write %3F for ? in a pattern,
because ? begins the parameters of an address.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, t, err := parse(args[0])
			if err != nil {
				return err
			}
			o, err := cf.options(e, false, u)
			if err != nil {
				return err
			}
			fc, err := cf.reach.files(cmd.Context(), e,
				func(ctx context.Context) (fileClient, error) { return dialFiles(ctx, e, u, t, o) })
			if err != nil {
				return err
			}
			defer ending(cmd.Context(), fc.Close)
			list := []store.Entry{}
			visit := func(rel string, en store.Entry) error {
				en.Name = store.Text(rel)
				if e.JSON {
					list = append(list, en)
					return nil
				}
				switch {
				case en.Dir:
					e.Printf("%15s %s\n", "", shell.Name(rel+"/"))
				case en.Other:
					e.Printf("%15s %s\n", "-", shell.Name(rel))
				default:
					e.Printf("%15d %s\n", fileSize(en), shell.Name(rel))
				}
				return nil
			}
			if err = lsPath(cmd.Context(), fc, u.Path, recursive, visit); err != nil || !e.JSON {
				return err
			}
			return e.PrintJSON(map[string]any{"url": u.String(), "entries": list})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "list subdirectories, too")
	cf.addToken(c, "prove to have the token in `FILE`, as a server with --token-file asks for")
	cf.reach.add(c, true)
	cf.add(c)
	return c
}

func tooDeep(rel string) error {
	return shell.Hint(fmt.Errorf("%s is more than %d directories deep", rel, maxDepth),
		"a symbolic link on the server may lead back to a directory above it")
}

// checkName refuses an entry whose name would make a client read or write elsewhere.
func checkName(en store.Entry) error {
	if n := string(en.Name); path.Base(n) != n || n == "." || n == ".." || n == "/" {
		return fmt.Errorf("the server names an entry %q, which is no name", en.Name)
	}
	return nil
}

func fileSize(en store.Entry) int64 {
	if en.Size == nil {
		return 0
	}
	return *en.Size
}

// lsPath visits the entries of a directory, or the matches of a pattern.
func lsPath(ctx context.Context, fc fileClient, p string, recursive bool, visit func(rel string, en store.Entry) error) error {
	if !isPattern(p) {
		return walk(ctx, fc, p, recursive, visit)
	}
	base, found, literal, err := glob(ctx, fc, p)
	if err != nil {
		return err
	}
	if literal && found[0].en.Dir {
		return walk(ctx, fc, p, recursive, visit)
	}
	if recursive {
		found = topmost(found)
	}
	for _, m := range found {
		if err := visit(m.rel, m.en); err != nil {
			return err
		}
		if !m.en.Dir || !recursive {
			continue
		}
		if err := walk(ctx, fc, path.Join(base, m.rel), true, func(rel string, en store.Entry) error { return visit(path.Join(m.rel, rel), en) }); err != nil {
			return err
		}
	}
	return nil
}

// walk visits the entries of a directory of the server, sorted by name. The entries of a
// subdirectory follow the subdirectory. rel is the path relative to dir.
func walk(ctx context.Context, fc fileClient, dir string, recursive bool, visit func(rel string, en store.Entry) error) error {
	var in func(rel string, depth int) error
	in = func(rel string, depth int) error {
		if depth > maxDepth {
			return tooDeep(rel)
		}
		es, err := fc.List(ctx, path.Join(dir, rel))
		if err != nil {
			return err
		}
		for _, en := range es {
			if err := checkName(en); err != nil {
				return err
			}
			p := path.Join(rel, string(en.Name))
			if err := visit(p, en); err != nil {
				return err
			}
			if en.Dir && recursive {
				if err := in(p, depth+1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return in("", 0)
}
