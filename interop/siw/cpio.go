package main

import (
	"fmt"
	"io"
	"io/fs"
)

// An archive writes a cpio archive in the "newc" format. The kernel unpacks the archive into the
// initial root file system. All files belong to root.
type archive struct {
	w    io.Writer
	n    int64
	ino  uint32
	dirs map[string]bool
	err  error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{".": true}}
}

// file adds a regular file; name has no leading slash.
func (a *archive) file(name string, mode fs.FileMode, data []byte) {
	a.entry(name, 0o100000|uint32(mode.Perm()), data)
}

// dir adds a directory not yet in the archive.
func (a *archive) dir(name string) {
	if !a.dirs[name] {
		a.dirs[name] = true
		a.entry(name, 0o040755, nil)
	}
}

// close writes the trailer, and returns the first error of all writes.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	a.write(make([]byte, -a.n&511))
	return a.err
}

func (a *archive) entry(name string, mode uint32, data []byte) {
	a.ino++
	links := 1
	if mode&0o170000 == 0o040000 {
		links = 2
	}
	h := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.ino, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.write([]byte(h + name + "\x00"))
	a.pad()
	a.write(data)
	a.pad()
}

// pad writes zeros up to a multiple of four bytes.
func (a *archive) pad() { a.write(make([]byte, -a.n&3)) }

func (a *archive) write(b []byte) {
	if a.err == nil {
		var n int
		n, a.err = a.w.Write(b)
		a.n += int64(n)
	}
}
