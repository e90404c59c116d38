// Package store serves the files of a directory. A written file appears under its name only when
// complete and verified. Nothing outside of the directory can be reached, not even by symbolic
// links. No unfinished file remains, whichever side dies during the transfer.
package store

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"
)

// Errors sent to the peer unchanged.
var (
	ErrNotFound = errors.New("not found")
	ErrReadOnly = errors.New("read-only")
	ErrBadPath  = errors.New("bad path")
	ErrIsDir    = errors.New("is a directory")
	ErrNotFile  = errors.New("not a regular file")
	ErrTooLarge = errors.New("too large")
	ErrRange    = errors.New("offset or length beyond the end of the file")
	ErrShrank   = errors.New("the file shrank while it was being served")
	ErrSum      = errors.New("sha256 does not match")
	ErrNoSpace  = errors.New("no space left")
	ErrDenied   = errors.New("permission denied")
	ErrTooMany  = fmt.Errorf("a directory of more than %d names", maxNames)
)

// A Store serves the files of a directory. A Store is safe for concurrent use.
type Store struct {
	root     *os.Root
	name     string // name of the root directory
	writable bool
	maxFile  int64
	maxNames int // largest number of names in a directory that List accepts
}

// Open opens the directory. maxFile bounds the length of a written file; for 0, only the disk
// bounds the length. If the store is writable, Open first removes the unfinished files of a killed
// predecessor.
func Open(dir string, writable bool, maxFile int64) (*Store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, name: dir, writable: writable, maxFile: maxFile, maxNames: maxNames}
	if writable {
		s.sweep(".")
	}
	return s, nil
}

// Close releases the directory. Open files stay usable.
func (s *Store) Close() error { return s.root.Close() }

// clean makes a peer's path relative and clean; the root itself is ".". A path may have any bytes,
// as on the system, except on Windows, where a path is text. Paths outside, and temporary files,
// are ErrBadPath.
func clean(p string) (string, error) {
	if !CanName(p) || strings.Contains(p, "\x00") || filepath.Separator != '/' &&
		strings.ContainsRune(p, filepath.Separator) || strings.HasPrefix(p, "/") || len(p) > 4000 {
		return "", ErrBadPath
	}
	c := path.Clean(p)
	if p == "" || c == "." {
		return ".", nil
	}
	if c == ".." || strings.HasPrefix(c, "../") || isTemp(path.Base(c)) {
		return "", ErrBadPath
	}
	return c, nil
}

// CanName reports whether a file of this system can have the name p exactly.
func CanName(p string) bool { return runtime.GOOS != "windows" || utf8.ValidString(p) }

// forPeer replaces an error of the file system by an error that reveals no more than a peer may
// know.
func forPeer(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		return ErrDenied
	case isNoSpace(err):
		return ErrNoSpace
	}
	for _, e := range []error{ErrBadPath, ErrReadOnly, ErrIsDir, ErrNotFile, ErrTooLarge, ErrRange, ErrShrank, ErrSum, ErrNoSpace, ErrDenied, ErrTooMany} {
		if errors.Is(err, e) {
			return err
		}
	}
	if strings.Contains(err.Error(), "escapes") {
		return ErrBadPath
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// OpenFile opens a regular file for reading. For other files, OpenFile returns ErrIsDir or
// ErrNotFile.
func (s *Store) OpenFile(p string) (*os.File, fs.FileInfo, error) {
	c, err := clean(p)
	if err != nil {
		return nil, nil, err
	}
	st, err := s.root.Stat(c) // before opening, since opening a pipe would block
	if err != nil {
		return nil, nil, forPeer(err)
	}
	if st.IsDir() {
		return nil, nil, ErrIsDir
	}
	if !st.Mode().IsRegular() {
		return nil, nil, ErrNotFile
	}
	f, err := s.root.OpenFile(c, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, nil, forPeer(err)
	}
	if st, err = f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, nil, ErrNotFile
	}
	return f, st, nil
}

// A View is a range of a file in memory. Data is a mapping of the file: an access faults if a
// program has truncated the file. Therefore Data is only for memory registrations that expect
// faults, and this package does not read Data.
type View struct {
	Data []byte
	Size int64 // bytes of the whole file at the time of View

	file   *os.File
	offset int64
	m      mapping
}

// View maps length bytes of a file at offset; length 0 means up to the end of the file. View
// returns ErrRange for a range not in the file. The caller must close the View.
func (s *Store) View(p string, offset, length int64) (*View, error) {
	f, st, err := s.OpenFile(p)
	if err != nil {
		return nil, err
	}
	v := &View{file: f, Size: st.Size(), offset: offset}
	if offset < 0 || length < 0 || offset > v.Size || length > v.Size-offset {
		f.Close()
		return nil, ErrRange
	}
	if length == 0 {
		length = v.Size - offset
	}
	if length > 0 {
		v.m.file = f
		if err := v.m.mmap(offset, length, false); err != nil {
			f.Close()
			return nil, forPeer(err)
		}
		v.Data = v.m.data
	}
	return v, nil
}

// Sum returns the SHA-256 of the range's present bytes, or ErrShrank if the file has become too
// short.
func (v *View) Sum() ([32]byte, error) {
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, io.NewSectionReader(v.file, v.offset, int64(len(v.Data))),
		make([]byte, 256<<10))
	if err != nil {
		return [32]byte{}, forPeer(err)
	}
	if n < int64(len(v.Data)) {
		return [32]byte{}, ErrShrank
	}
	return [32]byte(h.Sum(nil)), nil
}

// Shrank reports whether the file has become too short for the range.
func (v *View) Shrank() bool {
	st, err := v.file.Stat()
	return err == nil && st.Size() < v.offset+int64(len(v.Data))
}

// Close releases the memory. Data must not be used afterwards.
func (v *View) Close() {
	v.Data = nil
	_ = v.m.unmap() // nothing was written
	v.file.Close()
}

// An Entry is a line of a listing.
type Entry struct {
	Name  Text   `json:"name"`
	Dir   bool   `json:"dir,omitempty"`
	Size  *int64 `json:"size,omitempty"`  // set for files
	Other bool   `json:"other,omitempty"` // cannot be opened: a pipe, or a link that leads outside or nowhere
}

// List returns the entries of a directory, sorted by name. A symbolic link to a target inside the
// store is listed like the target.
func (s *Store) List(p string) ([]Entry, error) {
	c, err := clean(p)
	if err != nil {
		return nil, err
	}
	d, err := s.root.OpenFile(c, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, forPeer(err)
	}
	defer d.Close()
	if st, err := d.Stat(); err != nil || !st.IsDir() {
		return nil, errors.New("not a directory")
	}
	names, err := d.Readdirnames(s.maxNames + 1)
	if err != nil && err != io.EOF {
		return nil, forPeer(err)
	}
	if len(names) > s.maxNames {
		return nil, ErrTooMany
	}
	slices.Sort(names)
	out := make([]Entry, 0, len(names))
	for _, n := range names {
		if isTemp(n) {
			continue
		}
		en := Entry{Name: Text(n)}
		st, err := s.root.Stat(path.Join(c, n))
		switch {
		case err == nil && st.IsDir():
			en.Dir = true
		case err == nil && st.Mode().IsRegular():
			size := st.Size()
			en.Size = &size
		default:
			if _, err := s.root.Lstat(path.Join(c, n)); errors.Is(err, fs.ErrNotExist) {
				continue // removed meanwhile
			}
			en.Other = true
		}
		out = append(out, en)
	}
	return out, nil
}

// maxNames bounds the names in a listed directory.
const maxNames = 100_000

// Writable reports whether Create can succeed.
func (s *Store) Writable() bool { return s.writable }

// An Upload is a file being written.
type Upload struct {
	s         *Store
	dir, base string
	f         *os.File
	temp      string // name of the temporary file in dir; "" for a file without a name
	written   int64
	end       int64   // offset after the last block written; blocks of zeros are skipped
	flushed   int64   // bytes whose write-back was started
	m         mapping // mapping of the file, if Map was called
	done      bool
}

// flushBytes is the number of written bytes before the write-back to the disk is started, so that
// Commit has little to wait for.
const flushBytes = 8 << 20

// Create begins a file for calls of Write. With length > 0, Create reserves length bytes of the
// disk, if the file system can do so. length -1 means an unknown length.
func (s *Store) Create(p string, length int64) (*Upload, error) {
	if !s.writable {
		return nil, ErrReadOnly
	}
	c, err := clean(p)
	if err != nil {
		return nil, err
	}
	if c == "." || strings.HasSuffix(p, "/") {
		return nil, ErrIsDir
	}
	if s.maxFile > 0 && length > s.maxFile {
		return nil, fmt.Errorf("%w: at most %d bytes", ErrTooLarge, s.maxFile)
	}
	if st, err := s.root.Stat(c); err == nil && st.IsDir() {
		return nil, ErrIsDir
	} else if err == nil && !st.Mode().IsRegular() {
		return nil, ErrNotFile
	}
	u := &Upload{s: s, dir: path.Dir(c), base: path.Base(c)}
	if err := s.root.MkdirAll(u.dir, 0o755); err != nil {
		return nil, forPeer(err)
	}
	if u.f, u.temp, err = s.temp(u.dir); err != nil {
		return nil, forPeer(err)
	}
	if length > 0 {
		if err := reserve(u.f, length); err != nil {
			u.Abort()
			return nil, forPeer(err)
		}
	}
	return u, nil
}

// Write appends to the file. Beyond the store's limit, Write writes nothing and returns
// ErrTooLarge.
func (u *Upload) Write(p []byte) (int, error) {
	if u.s.maxFile > 0 && int64(len(p)) > u.s.maxFile-u.written {
		return 0, fmt.Errorf("%w: at most %d bytes", ErrTooLarge, u.s.maxFile)
	}
	n, err := u.write(p)
	u.written += int64(n)
	if u.written-u.flushed >= flushBytes {
		flush(u.f, u.flushed, u.written-u.flushed)
		u.flushed = u.written
	}
	return n, forPeer(err)
}

// zeroBlock is the least run of zeros left unwritten.
const zeroBlock = 16 << 10

var zeros [zeroBlock]byte

// write writes p except for blocks of zeros. Unwritten ranges read as zeros, so that a sparse file
// uses no more disk space than the source.
func (u *Upload) write(p []byte) (n int, err error) {
	for n < len(p) {
		k := n
		for k < len(p) && !isZero(p[k:min(k+zeroBlock, len(p))]) {
			k = min(k+zeroBlock, len(p))
		}
		if k == n {
			n = min(n+zeroBlock, len(p))
			continue
		}
		m, err := u.f.WriteAt(p[n:k], u.written+int64(n))
		n += m
		if m > 0 {
			u.end = u.written + int64(n)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// isZero reports whether b, of at most zeroBlock bytes, is all zeros.
func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// Map sets the length of an empty file, reserves its disk space, and returns a mapping of the file,
// nil for length 0. The caller may write to the mapping until Commit or Abort.
func (u *Upload) Map(length int64) ([]byte, error) {
	if length == 0 {
		return nil, nil
	}
	u.m.file = u.f
	if err := fill(u.f, length); err != nil {
		return nil, forPeer(err)
	}
	if err := u.m.mmap(0, length, true); err != nil {
		return nil, forPeer(err)
	}
	return u.m.data, nil
}

// Commit flushes the file to the disk and then makes the file visible under the final name. Commit
// replaces an existing file with the same name. After an error the file is removed, as by Abort.
func (u *Upload) Commit() error {
	if u.done {
		return fs.ErrClosed
	}
	err := u.m.unmap()
	if err == nil && u.end < u.written {
		err = u.f.Truncate(u.written)
	}
	if err == nil {
		err = u.f.Sync()
	}
	if err != nil {
		u.Abort()
		return forPeer(err)
	}
	if err := u.publish(); err != nil {
		u.Abort()
		return forPeer(err)
	}
	u.done = true
	u.f.Close()
	return nil
}

// Abort removes the file. After Commit, Abort does nothing.
func (u *Upload) Abort() {
	if u.done {
		return
	}
	u.done = true
	_ = u.m.unmap() // the bytes are dropped
	if u.temp != "" {
		u.s.root.Remove(path.Join(u.dir, u.temp))
	}
	u.f.Close()
}
