//go:build !linux

package main

import (
	"errors"
	"os"
)

// dataFrom returns at, because the system does not report where a sparse file has data.
func dataFrom(_ *os.File, at int64) int64 { return at }

// bytesRead returns false, because the system does not report the bytes read by a process.
func bytesRead(int) (int64, bool) { return 0, false }

// A disk is a separate file system that a test can fill. There is none on this system.
type disk struct{ dir string }

func newDisk(string, int64) (*disk, error) { return nil, errors.New("not on this system") }
func (*disk) leave(int64) error            { return errors.ErrUnsupported }
func (*disk) makeRoom() error              { return errors.ErrUnsupported }
func (*disk) close()                       {}
