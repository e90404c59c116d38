package store

import (
	"crypto/rand"
	"errors"
	"os"
	"path"
	"strings"
)

// Beginning and end of the names of temporary files. Peers do not see these files. sweep removes
// unlocked temporary files.
const (
	tempPrefix = ".viaduct-"
	tempSuffix = ".partial"
)

func isTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

func tempName() string { return tempPrefix + rand.Text() + tempSuffix }

// named creates and locks a temporary file in dir. named returns the file and the name in dir.
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

// rename gives a temporary file the final name, and replaces an existing file with the same name.
func (u *Upload) rename() error {
	if err := u.s.root.Rename(path.Join(u.dir, u.temp), path.Join(u.dir, u.base)); err != nil {
		return err
	}
	u.temp = ""
	return nil
}

// sweep removes temporary files a killed server left in a directory and all subdirectories. sweep
// does not follow links, and keeps files locked by a running server.
func (s *Store) sweep(dir string) {
	d, err := s.root.Open(dir)
	if err != nil {
		return // unreadable, so that we could not remove anything
	}
	es, _ := d.ReadDir(-1)
	d.Close()
	for _, e := range es {
		p := path.Join(dir, e.Name())
		switch {
		case e.IsDir():
			s.sweep(p)
		case e.Type().IsRegular() && isTemp(e.Name()):
			s.sweepFile(p)
		}
	}
}

func (s *Store) sweepFile(p string) {
	f, err := s.root.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if tryLock(f) {
		s.root.Remove(p)
	}
}
