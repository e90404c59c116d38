package verbs

import (
	"os"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
)

func syncCommand(e *shell.Env) *cobra.Command {
	var f treeFlags
	var dryRun bool
	var cf connFlags
	c := &cobra.Command{
		Use:   "sync DIR URL[/PATH]",
		Short: "store the files of a directory that a server lacks or has otherwise",
		Long: `Store the files of a directory that the server does not have below PATH with the
same size and SHA-256. No file is removed from the server. An interrupted sync
leaves only complete files; run it again to continue. A link is stored as the
file that it leads to; --no-follow leaves links out. Files that cannot be stored
(pipes, sockets, links to directories or to nothing) are listed, and the exit
status is then 1.`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, t, err := parse(args[1])
			if err != nil {
				return err
			}
			f.resume = true
			tr, err := f.tree(e, "sync", u, t, &cf)
			if err != nil {
				return err
			}
			if st, err := os.Stat(args[0]); err != nil {
				return err
			} else if !st.IsDir() {
				return shell.Usagef("%s is not a directory: put stores files", args[0])
			}
			tr.dryRun = dryRun
			return tr.put(cmd.Context(), args[:1], true)
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only print the files that would be stored")
	f.addParallel(c)
	f.addNoFollow(c)
	cf.addToken(c, "prove to have the token in `FILE`, as a server with --token-file asks for")
	cf.reach.add(c, true)
	cf.add(c)
	return c
}
