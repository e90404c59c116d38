package verbs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
)

// destination returns the name of the local file for u with -o out: out itself, or a file in the
// directory out. direct is true if the file is written directly, because the file is a device, a
// pipe, or the like.
func destination(u *addr.URL, out string) (name string, direct bool, err error) {
	base := path.Base(u.Path)
	if out == "" {
		out = base
	}
	st, err := os.Stat(out)
	if err == nil && st.IsDir() {
		if strings.ContainsRune(base, filepath.Separator) || base == "." || base == ".." {
			return "", false, shell.Usagef("-o %s is a directory, and %q is no name for a file in it", out, base)
		}
		out = filepath.Join(out, base)
		if st, err = os.Stat(out); err == nil && st.IsDir() {
			return "", false, shell.Usagef("%s is a directory: name a file by -o", out)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(out, "/"):
		return "", false, shell.Hint(fmt.Errorf("there is no directory %s", out), "make it, or name a file by -o")
	case errors.Is(err, fs.ErrNotExist):
		return out, false, nil
	case err != nil:
		return "", false, err
	}
	return out, !st.Mode().IsRegular(), nil
}

// openPipe opens a device or a pipe. A pipe waits for the other end until ctx ends.
func openPipe(ctx context.Context, name string, flags int) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	opened := make(chan result, 1)
	go func() {
		f, err := os.OpenFile(name, flags, 0)
		opened <- result{f, err}
	}()
	select {
	case r := <-opened:
		return r.f, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// openPart opens the file part to write to. It is an error if another process has the file open for
// the same purpose. With resume, openPart keeps the bytes of the file, and if part is absent, the
// incomplete file out becomes the part.
func openPart(out, part string, resume bool) (*os.File, error) {
	for {
		if resume {
			if _, err := os.Lstat(part); errors.Is(err, fs.ErrNotExist) {
				if err := os.Rename(out, part); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, err
				}
			}
		}
		f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		ours, err := claim(f, part)
		if err == nil && ours && !resume {
			err = f.Truncate(0)
		}
		if err == nil && ours {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// claim locks f, opened by the name part. It returns false if the name belongs to another file now,
// because the previous process with the lock on f has finished.
func claim(f *os.File, part string) (bool, error) {
	free, err := lockPart(f)
	if err != nil {
		return false, err
	}
	if !free {
		return false, shell.Hint(fmt.Errorf("another process is writing %s", part),
			"wait for it, or give another name by -o")
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(part)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, now), err
}
