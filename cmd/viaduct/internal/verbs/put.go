package verbs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
)

func putCommand(e *shell.Env) *cobra.Command {
	var cf connFlags
	var tf treeFlags
	c := &cobra.Command{
		Use:   "put FILE... URL/PATH [-r] | put - URL/PATH",
		Short: "store a file by RDMA Write (vitcp, iwarp, fcvi) or HTTP (sdp, tcp)",
		Long: `Store a file. It appears on the server only after the server has verified its
SHA-256; after a failure, nothing remains. If PATH is empty or ends in /, FILE's
name is added. FILE - is standard input. Standard input, pipes and devices are
stored up to their end.

Several files, and with -r directories with everything in them, are stored below
PATH under their own names, over several connections at a time. With --resume,
files that are alike on both sides, by size and SHA-256, are skipped, so that an
interrupted copy continues. A link is stored as the file that it leads to, inside
the directory or not; --no-follow leaves links out. Files that cannot be stored
(pipes, sockets, links to directories or to nothing) are listed, and the exit
status is then 1.`,
		Args: usageArgs(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := len(args) - 1
			u, t, err := parse(args[at])
			if err != nil {
				return err
			}
			if tf.recursive || at > 1 || tf.resume {
				tr, err := tf.tree(e, "put", u, t, &cf)
				if err != nil {
					return err
				}
				for _, src := range args[:at] {
					if src == "-" {
						return shell.Usagef("- goes with neither --resume nor other files")
					}
					if st, err := os.Stat(src); err != nil {
						return err
					} else if st.IsDir() && !tf.recursive {
						return shell.Usagef("%s is a directory: -r stores what is in it", src)
					}
				}
				return tr.put(cmd.Context(), args[:at], false)
			}
			if args[0] == "-" && (u.Path == "" || strings.HasSuffix(u.Path, "/")) {
				return shell.Usagef("address %q: standard input has no name: give one", u)
			}
			if u.Path == "" || strings.HasSuffix(u.Path, "/") {
				u = u.WithPath(path.Join(u.Path, filepath.Base(args[0])))
			}
			o, err := cf.options(e, false, u)
			if err != nil {
				return err
			}
			dial := func(ctx context.Context) (fileClient, error) { return dialFiles(ctx, e, u, t, o) }
			st, err := os.Stat(args[0]) // before opening, since opening a pipe would block
			switch {
			case args[0] == "-":
			case err != nil:
				return err
			case st.IsDir():
				return shell.Usagef("%s is a directory: -r stores what is in it", args[0])
			}
			if args[0] == "-" || !st.Mode().IsRegular() {
				// The source is opened before the connection, because a pipe may wait for a writer
				// for longer than a server waits.
				in, err := openStream(cmd.Context(), e, args[0])
				if err != nil {
					return err
				}
				defer in.Close()
				fc, err := cf.reach.files(cmd.Context(), e, dial)
				if err != nil {
					return err
				}
				defer ending(cmd.Context(), fc.Close)
				return putStream(cmd.Context(), e, fc, u, args[0], in)
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			if st, err = f.Stat(); err != nil {
				return err
			}
			fc, err := cf.reach.files(cmd.Context(), e, dial)
			if err != nil {
				return err
			}
			defer ending(cmd.Context(), fc.Close)
			r := &transferResult{Verb: "put", URL: u.String(), File: store.Text(args[0]),
				Transport: u.Scheme, Size: st.Size(), Bytes: st.Size()}
			_, r.Mechanism = fc.Mechanisms()
			bar := e.Progress(filepath.Base(args[0]), st.Size(), 0)
			h := sha256.New()
			start := time.Now()
			last := start
			moved := int64(0)
			err = fc.Put(cmd.Context(), u.Path, st.Size(), f, h, func(n int) {
				bar.Add(n)
				if moved += int64(n); moved == st.Size() {
					bar.Note("the server verifies")
				}
				last = time.Now()
			})
			bar.Done()
			if err != nil {
				return err
			}
			r.Seconds = last.Sub(start).Seconds()
			r.SHA256, r.Verified = hex.EncodeToString(h.Sum(nil)), true
			return r.print(e)
		},
	}
	c.Flags().BoolVarP(&tf.recursive, "recursive", "r", false, "store directories with everything in them")
	c.Flags().BoolVar(&tf.resume, "resume", false, "skip files that are alike on the server below PATH")
	tf.addParallel(c)
	tf.addNoFollow(c)
	cf.addToken(c, "prove to have the token in `FILE`, as a server with --token-file asks for")
	cf.reach.add(c, true)
	cf.add(c)
	return c
}
