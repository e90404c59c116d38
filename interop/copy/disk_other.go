//go:build !linux

package main

import (
	"errors"
	"os"
)

// dataFrom is where the data of a file goes on from an offset; what is before is zeros.
func dataFrom(_ *os.File, at int64) int64 { return at }

// bytesRead is how much a process has read so far.
func bytesRead(int) (int64, bool) { return 0, false }

// A disk is a file system of its own that can be full.
type disk struct{ dir string }

func newDisk(string, int64) (*disk, error) { return nil, errors.New("not on this system") }
func (*disk) leave(int64) error            { return errors.ErrUnsupported }
func (*disk) makeRoom() error              { return errors.ErrUnsupported }
func (*disk) close()                       {}
