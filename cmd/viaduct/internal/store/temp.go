package store

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Temporary files with a name have this form; they are hidden from peers, and
// those that are not locked any more are removed by sweep.
const (
	tempPrefix = ".viaduct-"
	tempSuffix = ".partial"
)

func isTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

func tempName() string { return tempPrefix + rand.Text() + tempSuffix }

// named makes a temporary file with a name and locks it.
func (s *Store) named(dir string) (*os.File, string, error) {
	name := tempName()
	f, err := s.root.OpenFile(path.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return nil, "", err
	}
	if !tryLock(f) {
		f.Close()
		s.root.Remove(path.Join(dir, name))
		return nil, "", errors.New("cannot lock a new file")
	}
	return f, name, nil
}

// rename gives a temporary file its final name.
func (u *Upload) rename() error {
	if err := u.s.root.Rename(path.Join(u.dir, u.temp), path.Join(u.dir, u.base)); err != nil {
		return err
	}
	u.temp = ""
	return nil
}

// sweep removes temporary files of servers that died. It does not follow links
// and leaves alone what a living server holds.
func (s *Store) sweep() {
	fs.WalkDir(s.root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // unreadable: not ours to clear
		}
		if !d.Type().IsRegular() || !isTemp(d.Name()) {
			return nil
		}
		f, err := s.root.OpenFile(p, os.O_RDWR, 0)
		if err != nil {
			return nil
		}
		if tryLock(f) {
			s.root.Remove(p)
		}
		f.Close()
		return nil
	})
}
