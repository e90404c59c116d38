// Package follow notices changes of a file, for configuration files an operator edits while a
// program runs.
package follow

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// A File is a file that is read again when its time, size or identity has changed. The identity is
// included because a file can be replaced by rename. Its methods must not be called concurrently.
type File struct {
	path string
	last fs.FileInfo // before the last successful read; nil: read the file
}

// New returns a File that was not read yet. The file at path need not exist.
func New(path string) *File { return &File{path: path} }

// Path returns the name of the file.
func (f *File) Path() string { return f.path }

// Read calls read with the file's content if the file has changed since read last returned nil.
// changed reports whether read was called. Read returns the error of read, or an error if the file
// can't be opened or is not a regular file. After an error the file counts as changed.
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
	if st, err = r.Stat(); err != nil { // of the opened file, because path may name another one by now
		return false, err
	}
	if err := read(r); err != nil {
		return false, err
	}
	f.last = st // as before the read, so that a change during it is noticed
	return true, nil
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
