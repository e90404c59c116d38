package registry

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"viaduct/internal/follow"
	"viaduct/internal/perturb"
)

// fileInterval is the interval at which Watch checks the file.
const fileInterval = time.Second

// maxFileBytes is the maximum length of a registry file in bytes.
const maxFileBytes = 16 << 20

// A File is a registry in a file within reach of all users, one record per line:
//
//	# kind  name          value
//	vi      node7         192.0.2.7
//	sdp     192.0.2.7:80  192.0.2.7:8080
//
// Text after # is comment. An operator writes such lines; they do not expire. Register adds lines
// with two more fields, id=HEX and until=TIME in the form of RFC 3339, and removes expired ones.
// Every change replaces the whole file, so that no reader sees half a file. The change holds a lock
// on the file PATH.lock, so the directory must be writable. The clocks of hosts with a common file
// must agree to well within a lease.
//
// Resolve checks whether the file has changed, and Watch does so every second. While the file is
// missing or can't be read, the answer is the last known records, marked stale. A File is safe for
// concurrent use.
type File struct {
	path  string
	table Table

	mu   perturb.Mutex
	file *follow.File // guarded by mu
}

// NewFile returns the registry in the file at path. The file need not exist before the
// first Register.
func NewFile(path string) *File { return &File{path: path, file: follow.New(path)} }

// refresh reads the file if it has changed. If the file can't be read or parsed, refresh marks the
// table stale and returns ErrUnavailable.
func (f *File) refresh() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.file.Read(func(r io.Reader) error {
		lines, err := readLines(r)
		if err != nil {
			return err
		}
		var records []Record
		for _, l := range lines {
			if l.Kind != "" {
				records = append(records, l.Record)
			}
		}
		return f.table.Set(records)
	})
	if err != nil {
		f.table.SetStale()
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// Resolve implements Registry. It reads the file only if the file has changed.
func (f *File) Resolve(ctx context.Context, kind, name string) (Answer, error) {
	failed := f.refresh()
	a, err := f.table.Resolve(ctx, kind, name)
	if failed != nil && errors.Is(err, ErrUnavailable) {
		err = failed
	}
	return a, err
}

// Watch implements Registry. It checks the file every second.
func (f *File) Watch(ctx context.Context, kind, name string, fn func(Answer)) error {
	failed := f.refresh()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(fileInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				f.refresh() // a failure marks the answer stale
			}
		}
	}()
	err := f.table.Watch(ctx, kind, name, fn)
	cancel()
	<-done
	if err != nil && failed != nil {
		return failed
	}
	return err
}

// Register implements Registry. It adds a line to the file, and creates the file if necessary.
func (f *File) Register(ctx context.Context, r Record, lease time.Duration) (Lease, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	l := &fileLease{f: f, r: r, lease: lease, id: newID()}
	if err := f.change(ctx, func(lines []fileLine) ([]fileLine, error) { return append(lines, l.line()), nil }); err != nil {
		return nil, fmt.Errorf("%w: %s can't be registered: %w", ErrUnavailable, r.Name, err)
	}
	return l, nil
}

func newID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// change replaces the file by the lines returned by edit, under the lock of the file. edit gets the
// present lines without expired lines, or none if the file does not exist.
func (f *File) change(ctx context.Context, edit func([]fileLine) ([]fileLine, error)) error {
	unlock, err := lockFile(ctx, f.path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	var lines []fileLine
	mode := fs.FileMode(0o644)
	switch b, err := os.ReadFile(f.path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if lines, err = readLines(bytes.NewReader(b)); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		if st, err := os.Stat(f.path); err == nil {
			mode = st.Mode().Perm()
		}
	}
	now := time.Now()
	lines = slices.DeleteFunc(lines, func(l fileLine) bool { return !l.Until.IsZero() && !now.Before(l.Until) })
	if lines, err = edit(lines); err != nil {
		return err
	}
	return replaceFile(f.path, mode, func(w io.Writer) error {
		for _, l := range lines {
			if _, err := fmt.Fprintln(w, l.text); err != nil {
				return err
			}
		}
		return nil
	})
}

// replaceFile replaces the file at path atomically.
func replaceFile(path string, mode fs.FileMode, write func(io.Writer) error) error {
	t, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(t)
	err = errors.Join(write(w), w.Flush(), t.Chmod(mode), t.Sync(), t.Close())
	if err == nil {
		err = os.Rename(t.Name(), path)
	}
	if err != nil {
		os.Remove(t.Name())
	}
	return err
}

// A fileLease is a line added by Register.
type fileLease struct {
	f     *File
	r     Record
	lease time.Duration
	id    string
}

func (l *fileLease) line() fileLine {
	r := l.r
	r.Until = time.Now().Add(l.lease).UTC().Round(time.Millisecond)
	return fileLine{r, l.id, fmt.Sprintf("%s %s %s id=%s until=%s", r.Kind, r.Name, r.Value,
		l.id, r.Until.Format(time.RFC3339Nano))}
}

// own returns the index in lines of the line of this registration, or ErrLeaseLost without such a
// line.
func (l *fileLease) own(lines []fileLine) (int, error) {
	i := slices.IndexFunc(lines, func(o fileLine) bool { return o.id == l.id })
	if i < 0 {
		return 0, ErrLeaseLost
	}
	return i, nil
}

func (l *fileLease) Renew(ctx context.Context) error {
	return l.f.change(ctx, func(lines []fileLine) ([]fileLine, error) {
		i, err := l.own(lines)
		if err == nil {
			lines[i] = l.line()
		}
		return lines, err
	})
}

func (l *fileLease) Release(ctx context.Context) error {
	err := l.f.change(ctx, func(lines []fileLine) ([]fileLine, error) {
		i, err := l.own(lines)
		if err != nil {
			return nil, err
		}
		return slices.Delete(lines, i, i+1), nil
	})
	if errors.Is(err, ErrLeaseLost) {
		return nil
	}
	return err
}

// A fileLine is a line of a registry file. Kind is empty if the line has no record.
type fileLine struct {
	Record
	id   string // identifies a registration; empty for an operator's line
	text string
}

// readLines parses a registry file. An error names the line.
func readLines(rd io.Reader) ([]fileLine, error) {
	var lines []fileLine
	lr := &io.LimitedReader{R: rd, N: maxFileBytes + 1}
	sc := bufio.NewScanner(lr)
	for sc.Scan() {
		l, err := readLine(sc.Text())
		if err != nil {
			return nil, fmt.Errorf("registry: line %d: %w", len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	if lr.N == 0 {
		return nil, fmt.Errorf("registry: the file is longer than %d bytes", maxFileBytes)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("registry: line %d: %w", len(lines)+1, err)
	}
	return lines, nil
}

func readLine(text string) (fileLine, error) {
	l := fileLine{text: text}
	s, _, _ := strings.Cut(text, "#")
	f := strings.Fields(s)
	if len(f) == 0 {
		return l, nil
	}
	if len(f) < 3 {
		return l, fmt.Errorf("want KIND NAME VALUE, got %d fields", len(f))
	}
	l.Record = Record{Kind: f[0], Name: f[1], Value: f[2]}
	for _, o := range f[3:] {
		name, value, _ := strings.Cut(o, "=")
		var err error
		switch name {
		case "id":
			l.id = value
		case "until":
			l.Until, err = time.Parse(time.RFC3339Nano, value)
		default:
			err = fmt.Errorf("unknown option %q, want id=HEX or until=TIME", o)
		}
		if err != nil {
			return l, err
		}
	}
	return l, l.Check()
}
