package verbs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
)

// A transferResult is the result of get and put.
type transferResult struct {
	Verb      string     `json:"verb"`
	URL       string     `json:"url"`
	File      store.Text `json:"file"`
	Transport string     `json:"transport"`
	Mechanism string     `json:"mechanism"`
	Size      int64      `json:"size"`   // size of the whole file
	Offset    int64      `json:"offset"` // bytes that the file already had
	Bytes     int64      `json:"bytes"`  // bytes that were moved
	Seconds   float64    `json:"seconds"`
	Rate      float64    `json:"bytes_per_second"`
	SHA256    string     `json:"sha256"`
	Verified  bool       `json:"verified"`
}

func (r *transferResult) print(e *shell.Env) error {
	if r.Seconds > 0 {
		r.Rate = float64(r.Bytes) / r.Seconds
	}
	if e.JSON {
		return e.PrintJSON(r)
	}
	e.Printf("%s %s: %d bytes by %s in %.3f s (%s), sha256 %s verified\n", r.Verb,
		shell.Name(string(r.File)), r.Bytes, r.Mechanism, r.Seconds, shell.Rate(r.Rate), r.SHA256)
	return nil
}

func getCommand(e *shell.Env) *cobra.Command {
	var out string
	var resume bool
	var cf connFlags
	var tf treeFlags
	c := &cobra.Command{
		Use:   "get URL/PATH [-o FILE] [-r]",
		Short: "fetch a file by RDMA Read (vitcp, iwarp, fcvi) or HTTP (sdp, tcp)",
		Long: `Fetch a file and verify its SHA-256. The bytes are written to FILE.part, which is
renamed to FILE when it is complete. Without -o, FILE is the last element of
PATH. If FILE is a directory, the file gets its name in that directory. Devices
and pipes are written directly. "-o -" writes to standard output.

An element of PATH that exists on the server is taken literally. Otherwise it is
a pattern, in which * and [...] match names as in a shell, and ** matches any
number of directories. Write %3F for ? in a pattern. All files that match are
fetched into the directory of -o, by default the current one, below the names of
the matched directories.

With -r, PATH is a directory. All files in it are fetched into the directory of
-o, by default one with the name of PATH's last element, over several
connections at a time. With --resume, files that are alike on both sides, by
size and SHA-256, are skipped, and interrupted files are continued. Files that
cannot be fetched (pipes, and links that lead nowhere or out of the server's
directory) are listed, and the exit status is then 1.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, t, err := parse(args[0])
			if err != nil {
				return err
			}
			if isPattern(u.Path) {
				tf.resume = resume
				tr, err := tf.tree(e, "get", u, t, &cf)
				if err != nil {
					return err
				}
				if literal, err := getPattern(cmd.Context(), tr, out, tf.recursive); err != nil || !literal {
					return err
				}
			}
			if tf.recursive {
				if out == "" {
					out = path.Base(path.Clean("/" + u.Path))
				}
				if out == "-" || out == "/" {
					return shell.Usagef("-r wants a directory: name one by -o")
				}
				tf.resume = resume
				tr, err := tf.tree(e, "get", u, t, &cf)
				if err != nil {
					return err
				}
				return tr.get(cmd.Context(), out)
			}
			if u.Path == "" {
				return shell.Usagef("address %q: the path of a file is missing", u)
			}
			if out == "-" && (resume || e.JSON) {
				return shell.Usagef("-o - goes with neither --resume nor --json")
			}
			direct := false
			if out != "-" {
				if out, direct, err = destination(u, out); err != nil {
					return err
				}
			}
			if direct && resume {
				return shell.Usagef("%s is not a regular file: --resume needs one", out)
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
			r := &transferResult{Verb: "get", URL: u.String(), File: store.Text(out), Transport: u.Scheme}
			r.Mechanism, _ = fc.Mechanisms()
			if out == "-" {
				_, err := fetch(cmd.Context(), e, fc, u, 0, e.Stdout, sha256.New(), r)
				return err
			}
			if direct {
				return getDirect(cmd.Context(), e, fc, u, out, r)
			}
			return getFile(cmd.Context(), e, fc, u, out, resume, r)
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "write to `FILE`, or into that directory; - is standard output")
	c.Flags().BoolVar(&resume, "resume", false, "continue FILE.part, or an incomplete FILE")
	c.Flags().BoolVarP(&tf.recursive, "recursive", "r", false, "fetch a directory with everything in it")
	tf.addParallel(c)
	cf.addToken(c, "prove to have the token in `FILE`, as a server with --token-file asks for")
	cf.reach.add(c, true)
	cf.add(c)
	return c
}

// getPattern fetches the matches of a pattern into the directory out. If literal is true, the
// server has a file of exactly the given name, and getPattern has done nothing.
func getPattern(ctx context.Context, tr *tree, out string, recursive bool) (literal bool, err error) {
	fc, err := tr.dial(ctx)
	if err != nil {
		return false, err
	}
	base, found, literal, err := glob(ctx, fc, tr.u.Path)
	ending(ctx, fc.Close)
	if err != nil || literal {
		return literal, err
	}
	if out == "-" {
		return false, shell.Usagef("a pattern wants a directory: name one by -o")
	}
	if !recursive && !slices.ContainsFunc(found, func(m match) bool { return !m.en.Dir && !m.en.Other }) {
		return false, shell.Usagef("%q matches directories alone: -r fetches what is in them", tr.u.Path)
	}
	tr.u = tr.u.WithPath(base)
	return false, tr.getMatches(ctx, cmp.Or(out, "."), found, recursive)
}

// getDirect fetches into a device or a pipe. Wrong bytes cannot be taken back once written.
func getDirect(ctx context.Context, e *shell.Env, fc fileClient, u *addr.URL, out string, r *transferResult) error {
	f, err := openPipe(ctx, out, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fetch(ctx, e, fc, u, 0, f, sha256.New(), r); err != nil {
		if errors.Is(err, syscall.EPIPE) {
			err = shell.Hint(err, "the reader of "+out+" went away")
		}
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return r.print(e)
}

// getFile fetches into a file that gets the final name once complete.
func getFile(ctx context.Context, e *shell.Env, fc fileClient, u *addr.URL, out string, resume bool, r *transferResult) error {
	part := out + ".part"
	f, err := openPart(out, part, resume)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if resume {
		if r.Offset, err = prefix(ctx, e, fc, u, f, h); err != nil {
			return err
		}
	}
	n, err := fetch(ctx, e, fc, u, r.Offset, f, h, r)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Rename(part, out)
	}
	if err == nil {
		return r.print(e)
	}
	switch {
	case errors.Is(err, memsvc.ErrChanged), errors.Is(err, httpfile.ErrChanged):
		os.Remove(part)
		return shell.Hint(err, "nothing was kept; run it again")
	case n == 0 && r.Offset > 0 && errors.Is(err, httpfile.ErrRefused):
		return shell.Hint(err, fmt.Sprintf("%s may not belong to this file: run it again without --resume", part))
	case r.Offset+n == 0:
		os.Remove(part)
		return err
	}
	return shell.Hint(err, fmt.Sprintf("%d bytes are in %s; run it again with --resume to go on", r.Offset+n, part))
}

// prefix hashes the bytes in f, and returns how many of them need not be fetched again. If the
// server's file begins with different bytes, prefix empties f, resets h and returns 0. If the
// server cannot compare, f stays unchanged.
func prefix(ctx context.Context, e *shell.Env, fc fileClient, u *addr.URL, f *os.File, h hash.Hash) (int64, error) {
	n, err := io.Copy(h, f)
	if err != nil || n == 0 {
		return 0, err
	}
	sum, known, err := fc.PrefixSum(ctx, u.Path, n)
	if !known && err == nil || known && sum == [32]byte(h.Sum(nil)) {
		return n, nil
	}
	if err != nil && !errors.Is(err, memsvc.ErrRefused) && !errors.Is(err, httpfile.ErrRefused) {
		return 0, err
	}
	why := "other bytes"
	if err != nil {
		why = err.Error()
	}
	e.Log.Warn("the local bytes differ from the server's file, starting from the beginning",
		"file", f.Name(), "why", why)
	h.Reset()
	if err := f.Truncate(0); err != nil {
		return 0, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return 0, err
}

// fetch moves the bytes, shows progress and fills in r. n is the number of bytes written.
func fetch(ctx context.Context, e *shell.Env, fc fileClient, u *addr.URL, offset int64, w io.Writer, h hash.Hash, r *transferResult) (n int64, err error) {
	var bar *shell.Bar
	start := time.Now()
	last := start
	err = fc.Get(ctx, u.Path, offset, w, h, func(length, size int64) {
		r.Size = size
		bar = e.Progress(path.Base(u.Path), size, offset)
	}, func(k int) {
		n += int64(k)
		bar.Add(k)
		last = time.Now()
	})
	bar.Done()
	r.Bytes, r.Seconds = n, last.Sub(start).Seconds()
	if err != nil {
		return n, err
	}
	r.SHA256, r.Verified = hex.EncodeToString(h.Sum(nil)), true
	return n, nil
}
