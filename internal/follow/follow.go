// Package follow notices that a file has changed, for what is configured by a file
// that an operator edits while a program runs.
package follow

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// A File is a file that is read again when it has changed: when its time, size or
// identity is another one, so that a file replaced by rename is noticed too. Its
// methods must not be called concurrently.
type File struct {
	path string
	last fs.FileInfo // as it was before it was last read well; nil: read it
}

// New returns a File that was not read yet. The path may name a file that does not
// exist yet.
func New(path string) *File { return &File{path: path} }

// Path returns the name of the file.
func (f *File) Path() string { return f.path }

// Read calls read with the file's content if it has changed since the last call of
// read that returned nil, and reports whether there was such a call. A file that
// can't be opened or is not a regular file is an error, and so is what read
// returns; after an error the file counts as changed.
func (f *File) Read(read func(io.Reader) error) (changed bool, err error) {
	st, err := os.Stat(f.path)
	if err == nil && f.last != nil && same(f.last, st) {
		return false, nil
	}
	f.last = nil
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() { // opening a pipe would block
		return false, errors.New(f.path + " is not a regular file")
	}
	r, err := os.Open(f.path)
	if err != nil {
		return false, err
	}
	defer r.Close()
	if err := read(r); err != nil {
		return false, err
	}
	f.last = st // of before the read: a change during it is seen as a change
	return true, nil
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
