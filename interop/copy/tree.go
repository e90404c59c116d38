package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// largeName is the name of the large file, the last to be copied.
const largeName = "large"

// makeTree makes a directory with files of n random bytes each, in dirs subdirectories.
func makeTree(dir string, files, dirs int, n int64) error {
	b := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{})
	for i := range files {
		d := filepath.Join(dir, fmt.Sprintf("d%04d", i%dirs))
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
		rnd.Read(b)
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("f%d", i/dirs)), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// sparseStep is the distance in bytes between the pieces written by makeSparse.
const sparseStep = 4 << 20

// makeSparse makes a file of n bytes, with a few distinct bytes in every sparseStep and holes
// between them.
func makeSparse(name string, n int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil {
		return err
	}
	for at := int64(0); at+8 <= n; at += sparseStep {
		if _, err := f.WriteAt([]byte(fmt.Sprintf("%08x", at/sparseStep)), at); err != nil {
			return err
		}
	}
	return f.Close()
}

// compare returns an error unless a and b are equal files, or directories with the same equal
// files.
func compare(a, b string) error {
	as, err := list(a)
	if err != nil {
		return err
	}
	bs, err := list(b)
	if err != nil {
		return err
	}
	if !slices.Equal(as, bs) {
		return fmt.Errorf("%d files and directories became %d, or have other names", len(as), len(bs))
	}
	for _, n := range as {
		if n[len(n)-1] == filepath.Separator {
			continue
		}
		if err := same(filepath.Join(a, n), filepath.Join(b, n)); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names of all files below dir, relative to dir. The name of a directory ends in a
// separator.
func list(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir && d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if d.IsDir() {
			rel += string(filepath.Separator)
		}
		names = append(names, rel)
		return err
	})
	return names, err
}

// same returns an error unless two files have the same bytes.
func same(a, b string) error {
	fa, err := os.Open(a)
	if err != nil {
		return err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return err
	}
	defer fb.Close()
	ba, bb := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); ; {
		// Ranges without data in both files are skipped, because such ranges are zeros.
		if next := min(dataFrom(fa, at), dataFrom(fb, at)); next > at {
			at = next
		}
		n, erra := fa.ReadAt(ba, at)
		m, errb := fb.ReadAt(bb, at)
		if !bytes.Equal(ba[:n], bb[:m]) {
			return fmt.Errorf("%s differs from %s after %d bytes", b, a, at)
		}
		at += int64(n)
		if erra != nil || errb != nil {
			if erra == io.EOF && errb == io.EOF {
				return nil
			}
			return errors.Join(erra, errb, fmt.Errorf("%s: after %d bytes", b, at))
		}
	}
}
