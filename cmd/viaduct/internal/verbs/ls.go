package verbs

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
)

// maxDepth bounds how deep a directory is followed: a symbolic link on the
// server may lead back up.
const maxDepth = 64

func lsCommand(e *shell.Env) *cobra.Command {
	var recursive bool
	var cf connFlags
	c := &cobra.Command{
		Use:   "ls URL[/PATH] [-r]",
		Short: "list a directory that is served",
		Long: `List a directory of a server: one name per line, those of directories with a /
at the end, files with their size in bytes before the name.`,
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
			fc, err := cf.reach.files(cmd.Context(), e, func(ctx context.Context) (fileClient, error) { return dialFiles(ctx, e, u, t, o) })
			if err != nil {
				return err
			}
			defer ending(cmd.Context(), fc.Close)
			list := []store.Entry{}
			err = walk(cmd.Context(), fc, u.Path, recursive, func(rel string, en store.Entry) error {
				en.Name = rel
				if e.JSON {
					list = append(list, en)
					return nil
				}
				if en.Dir {
					e.Printf("%15s %s/\n", "", rel)
				} else {
					e.Printf("%15d %s\n", fileSize(en), rel)
				}
				return nil
			})
			if err != nil || !e.JSON {
				return err
			}
			return e.PrintJSON(map[string]any{"url": u.String(), "entries": list})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "list the directories in it too")
	cf.reach.add(c, true)
	cf.add(c)
	return c
}

func fileSize(en store.Entry) int64 {
	if en.Size == nil {
		return 0
	}
	return *en.Size
}

// walk visits what is in a directory of the server, by name; what is in a
// directory comes after it. rel is the path from where it began.
func walk(ctx context.Context, fc fileClient, dir string, recursive bool, visit func(rel string, en store.Entry) error) error {
	var in func(rel string, depth int) error
	in = func(rel string, depth int) error {
		if depth > maxDepth {
			return shell.Hint(fmt.Errorf("%s is more than %d directories deep", rel, maxDepth), "a symbolic link on the server may lead back to a directory above it")
		}
		es, err := fc.List(ctx, path.Join(dir, rel))
		if err != nil {
			return err
		}
		for _, en := range es {
			if path.Base(en.Name) != en.Name || en.Name == "." || en.Name == ".." || en.Name == "/" {
				return errors.New("the server names an entry " + fmt.Sprintf("%q", en.Name) + ", which is no name")
			}
			p := path.Join(rel, en.Name)
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
