//go:build !linux

package main

import (
	"errors"
	"os"
)

// dataFrom returns at: this system does not report where a sparse file has data.
func dataFrom(_ *os.File, at int64) int64 { return at }

// bytesRead returns false: this system does not report the bytes that a process has read.
func bytesRead(int) (int64, bool) { return 0, false }

// A disk is a separate file system, so that it can be full. This system has none.
type disk struct{ dir string }

func newDisk(string, int64) (*disk, error) { return nil, errors.New("not on this system") }
func (*disk) leave(int64) error            { return errors.ErrUnsupported }
func (*disk) makeRoom() error              { return errors.ErrUnsupported }
func (*disk) close()                       {}
