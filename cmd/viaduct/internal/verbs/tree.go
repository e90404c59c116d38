package verbs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/transport"
)

// maxParallel bounds --parallel.
const maxParallel = 64

// A tree copies many files between a directory and a server, over several connections at a time.
// With resume, the tree skips files equal on both sides, so that an interrupted copy continues.
type tree struct {
	e        *shell.Env
	verb     string
	u        *addr.URL // address of the directory at the server
	dial     func(context.Context) (fileClient, error)
	parallel int
	resume   bool
	dryRun   bool
	noFollow bool // a put does not copy symbolic links
	bar      *shell.Total
	left     omissions

	mu     sync.Mutex
	result treeResult // guarded by mu
}

// A treeResult is the result of a copy.
type treeResult struct {
	Verb      string  `json:"verb"`
	URL       string  `json:"url"`
	Transport string  `json:"transport"`
	Files     int     `json:"files"` // number of files that were moved
	Alike     int     `json:"alike"` // number of files that both sides had already
	Bytes     int64   `json:"bytes"` // bytes that were moved
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"bytes_per_second"`
	DryRun    bool    `json:"dry_run,omitempty"`

	LeftOut []omission `json:"left_out,omitempty"`
}

// A mover copies the file of a job and reports progress. alike is true if both sides had the same
// file already.
type mover func(ctx context.Context, fc fileClient, j job, progress func(n int)) (alike bool, err error)

// A job is a file to copy.
type job struct {
	rel   string // path below both directories, with slashes
	local string // path of the source file of a put
	size  int64
}

// run copies the files found by produce, by calls of move on several connections. The first error
// ends the copy. The contexts of the other moves then end without that error as the cause, because
// a move must not take it for an answer of its own server. A copy with omitted files runs to the
// end and then returns an error.
func (tr *tree) run(ctx context.Context, produce func(ctx context.Context, found func(job) error) error, move mover) error {
	began := time.Now()
	if tr.bar = new(shell.Total); !tr.dryRun {
		tr.bar = tr.e.Total(tr.verb)
	}
	jobs := make(chan job, 4*tr.parallel)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	fail := func(err error) {
		once.Do(func() { first = err; cancel() })
	}
	for range tr.parallel {
		wg.Go(func() {
			var fc fileClient
			defer func() {
				if fc != nil {
					ending(ctx, fc.Close)
				}
			}()
			for j := range jobs {
				if ctx.Err() != nil {
					continue
				}
				if fc == nil {
					var err error
					if fc, err = tr.dial(ctx); err != nil {
						fail(err)
						continue
					}
				}
				if err := tr.one(ctx, fc, j, move); err != nil {
					fail(fmt.Errorf("%s: %w", shell.Name(j.rel), err))
				}
			}
		})
	}
	err := produce(ctx, func(j job) error {
		tr.bar.Found(j.size)
		select {
		case jobs <- j:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		fail(err)
	}
	close(jobs)
	wg.Wait()
	tr.bar.Done()
	r := &tr.result
	r.Verb, r.URL, r.Transport, r.DryRun = tr.verb, tr.u.String(), tr.u.Scheme, tr.dryRun
	if r.Seconds = time.Since(began).Seconds(); r.Seconds > 0 {
		r.Rate = float64(r.Bytes) / r.Seconds
	}
	if first != nil {
		again := "--resume goes on"
		if tr.verb == "sync" {
			again = "another sync goes on"
		}
		if r.Files > 0 {
			return fmt.Errorf("%w; %d files were moved, %s", first, r.Files, again)
		}
		return first
	}
	if err := tr.print(); err != nil {
		return err
	}
	return tr.left.err(tr.e)
}

func (tr *tree) print() error {
	r := &tr.result
	r.LeftOut = tr.left.list()
	switch {
	case tr.e.JSON:
		return tr.e.PrintJSON(r)
	case tr.dryRun:
		tr.e.Printf("%s would move %d files, %d bytes; %d are there already\n", tr.verb, r.Files, r.Bytes, r.Alike)
	default:
		tr.e.Printf("%s %d files, %d bytes in %.3f s (%s), verified; %d were there already\n",
			tr.verb, r.Files, r.Bytes, r.Seconds, shell.Rate(r.Rate), r.Alike)
	}
	return nil
}

// one copies the file of a job, counts the file in the result and prints the name.
func (tr *tree) one(ctx context.Context, fc fileClient, j job, move mover) error {
	var told atomic.Int64
	alike, err := move(ctx, fc, j, func(n int) {
		told.Add(int64(n))
		tr.bar.Add(n)
	})
	if err != nil {
		return err
	}
	tr.bar.Moved(j.size, told.Load())
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if alike {
		tr.result.Alike++
		return nil
	}
	tr.result.Files++
	tr.result.Bytes += j.size
	if !tr.e.JSON && (tr.dryRun || !tr.e.OnTerminal()) {
		tr.e.Printf("%s\n", shell.Name(j.rel))
	}
	return nil
}

// same reports whether the first n bytes of the server's file equal the bytes of f. It returns
// false for n = 0, and if the server has no sum of the bytes. f must be at the start, and is there
// again after a nil error.
func (tr *tree) same(ctx context.Context, fc fileClient, remote string, f io.ReadSeeker, n int64) (bool, error) {
	if n == 0 {
		return false, nil // for a short file, a comparison takes as long as a copy
	}
	sum, known, err := fc.PrefixSum(ctx, remote, n)
	if errors.Is(err, memsvc.ErrRefused) || errors.Is(err, httpfile.ErrRefused) || err == nil && !known {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	h := sha256.New()
	if _, err := io.CopyN(h, f, n); err != nil {
		return false, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	return [32]byte(h.Sum(nil)) == sum, nil
}

// put stores files and directories, each under its own name. With bare, put stores the contents of
// the sources without their names.
func (tr *tree) put(ctx context.Context, sources []string, bare bool) error {
	sizes := newSizes(tr)
	return tr.run(ctx, func(ctx context.Context, found func(job) error) error {
		for _, src := range sources {
			base := filepath.Base(filepath.Clean(src))
			if bare || base == "." || base == ".." || base == string(filepath.Separator) {
				base = ""
			}
			if err := tr.local(src, base, found); err != nil {
				return err
			}
		}
		return nil
	}, func(ctx context.Context, fc fileClient, j job, progress func(n int)) (bool, error) {
		f, err := os.Open(j.local)
		if err != nil {
			return false, err
		}
		defer f.Close()
		remote := path.Join(tr.u.Path, j.rel)
		if tr.resume {
			there, known, err := sizes.of(ctx, fc, remote)
			if err != nil {
				return false, err
			}
			if known && there == j.size {
				if same, err := tr.same(ctx, fc, remote, f, j.size); err != nil || same || j.size == 0 {
					return same || j.size == 0, err
				}
			}
		}
		if tr.dryRun {
			return false, nil
		}
		return false, fc.Put(ctx, remote, j.size, f, sha256.New(), progress)
	})
}

// local finds the files below src, to be stored below base. A link to a file stands for the file.
// src may be a link to a directory, but a link to a directory within src is left out.
func (tr *tree) local(src, base string, found func(job) error) error {
	top, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	return filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		isLink := d.Type()&fs.ModeSymlink != 0
		if isLink && tr.noFollow {
			tr.e.Log.Info("left out", "path", p, "why", "a link")
			return nil
		}
		st, err := os.Stat(p)
		switch {
		case err != nil && isLink:
			tr.left.add(p, linkToNothing)
			return nil
		case err != nil:
			return err
		case isLink && st.IsDir():
			tr.left.add(p, linkToDir)
			return nil
		case !st.Mode().IsRegular():
			tr.left.add(p, notAFile)
			return nil
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		return found(job{rel: path.Join(filepath.ToSlash(base), filepath.ToSlash(rel)), local: p, size: st.Size()})
	})
}

// sizes caches the listings of the server's directories, so that each is requested once.
type sizes struct {
	tr  *tree
	mu  sync.Mutex
	dir map[string]*listing // guarded by mu
}

// A listing is a directory's files with sizes.
type listing struct {
	once sync.Once
	size map[string]int64
	err  error
}

func newSizes(tr *tree) *sizes { return &sizes{tr: tr, dir: make(map[string]*listing)} }

// of returns the size of a file at the server. known is false if the file does not exist.
func (s *sizes) of(ctx context.Context, fc fileClient, remote string) (n int64, known bool, err error) {
	d := path.Dir(remote)
	if d == "." {
		d = ""
	}
	s.mu.Lock()
	l := s.dir[d]
	if l == nil {
		l = &listing{size: make(map[string]int64)}
		s.dir[d] = l
	}
	s.mu.Unlock()
	l.once.Do(func() {
		es, err := fc.List(ctx, d)
		if err != nil && !errors.Is(err, memsvc.ErrRefused) &&
			!errors.Is(err, httpfile.ErrRefused) { // after a refusal, the directory does not exist yet
			l.err = err
		}
		for _, en := range es {
			if !en.Dir && !en.Other {
				l.size[string(en.Name)] = fileSize(en)
			}
		}
	})
	n, known = l.size[path.Base(remote)]
	return n, known, l.err
}

// get fetches a directory into dir, created if absent.
func (tr *tree) get(ctx context.Context, dir string) error {
	return tr.getBelow(ctx, dir, func(ctx context.Context, fc fileClient, visit func(rel string, en store.Entry) error) error {
		return walk(ctx, fc, tr.u.Path, true, visit)
	})
}

// getMatches fetches the matches of a pattern below tr.u. It leaves directories out unless
// recursive is set.
func (tr *tree) getMatches(ctx context.Context, dir string, found []match, recursive bool) error {
	if recursive {
		found = topmost(found)
	}
	return tr.getBelow(ctx, dir, func(ctx context.Context, fc fileClient, visit func(rel string, en store.Entry) error) error {
		for _, m := range found {
			var err error
			switch {
			case !m.en.Dir:
				err = visit(m.rel, m.en)
			case !recursive:
				tr.left.add(m.rel, needsR)
			default:
				err = walk(ctx, fc, path.Join(tr.u.Path, m.rel), true,
					func(rel string, en store.Entry) error { return visit(path.Join(m.rel, rel), en) })
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// getBelow fetches the files passed by visitAll to visit, by their paths below tr.u.
func (tr *tree) getBelow(ctx context.Context, dir string, visitAll func(ctx context.Context, fc fileClient, visit func(rel string, en store.Entry) error) error) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // keeps names of the server from leading elsewhere through links
	if err != nil {
		return err
	}
	defer root.Close()
	return tr.run(ctx, func(ctx context.Context, found func(job) error) error {
		fc, err := tr.dial(ctx)
		if err != nil {
			return err
		}
		defer ending(ctx, fc.Close)
		return visitAll(ctx, fc, func(rel string, en store.Entry) error {
			if en.Other {
				tr.left.add(rel, notAFile)
				return nil
			}
			if !filepath.IsLocal(filepath.FromSlash(rel)) || !store.CanName(rel) {
				return fmt.Errorf("the server's name %q cannot be a file here", rel)
			}
			if en.Dir {
				return root.MkdirAll(filepath.FromSlash(rel), 0o777)
			}
			if up := filepath.Dir(filepath.FromSlash(rel)); up != "." {
				if err := root.MkdirAll(up, 0o777); err != nil {
					return err
				}
			}
			return found(job{rel: rel, size: fileSize(en)})
		})
	}, func(ctx context.Context, fc fileClient, j job, progress func(n int)) (bool, error) {
		remote, name := path.Join(tr.u.Path, j.rel), filepath.FromSlash(j.rel)
		if tr.resume {
			if f, err := root.Open(name); err == nil {
				st, err := f.Stat()
				same := err == nil && st.Mode().IsRegular() && st.Size() == j.size
				if same && j.size > 0 {
					same, err = tr.same(ctx, fc, remote, f, j.size)
				}
				f.Close()
				if err != nil || same {
					return same, err
				}
			}
		}
		return false, tr.fetch(ctx, fc, root, remote, name, j.size, progress)
	})
}

// fetch gets a file. The name of an incomplete file ends in .part. With resume, an interrupted
// .part is continued.
func (tr *tree) fetch(ctx context.Context, fc fileClient, root *os.Root, remote, name string, n int64, progress func(n int)) error {
	part := name + ".part"
	flags := os.O_CREATE | os.O_RDWR
	if !tr.resume {
		flags |= os.O_TRUNC
	}
	f, err := root.OpenFile(part, flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	offset := int64(0)
	if tr.resume {
		if offset, err = prefix(ctx, tr.e, fc, tr.u.WithPath(remote), f, h); err != nil {
			return err
		}
	}
	got := int64(0)
	err = fc.Get(ctx, remote, offset, f, h, nil, func(k int) {
		got += int64(k)
		progress(k)
	})
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = root.Rename(part, name)
	}
	if err != nil && (offset+got == 0 || errors.Is(err, memsvc.ErrChanged) || errors.Is(err, httpfile.ErrChanged)) {
		root.Remove(part)
	}
	return err
}

// A treeFlags holds the common flags of verbs for trees.
type treeFlags struct {
	recursive bool
	resume    bool
	noFollow  bool
	parallel  int
}

func (f *treeFlags) addNoFollow(c *cobra.Command) {
	c.Flags().BoolVar(&f.noFollow, "no-follow", false,
		"leave out symbolic links, instead of storing the files that they lead to")
}

func (f *treeFlags) addParallel(c *cobra.Command) {
	c.Flags().IntVar(&f.parallel, "parallel", 4, "`N` connections at a time for several files")
}

func (f *treeFlags) tree(e *shell.Env, verb string, u *addr.URL, t *transport.Transport, cf *connFlags) (*tree, error) {
	if f.parallel < 1 || f.parallel > maxParallel {
		return nil, shell.Usagef("--parallel %d is not between 1 and %d", f.parallel, maxParallel)
	}
	if _, err := cf.options(e, false, u); err != nil {
		return nil, err
	}
	dial := func(ctx context.Context) (fileClient, error) {
		o, err := cf.options(e, false, u)
		if err != nil {
			return nil, err
		}
		return cf.reach.files(ctx, e,
			func(ctx context.Context) (fileClient, error) { return dialFiles(ctx, e, u, t, o) })
	}
	return &tree{e: e, verb: verb, u: u, dial: dial, parallel: f.parallel, resume: f.resume, noFollow: f.noFollow}, nil
}
