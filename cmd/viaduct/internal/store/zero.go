package store

import (
	"io"
	"os"
)

// fillZero writes length zeros, on systems where blocks cannot be reserved otherwise.
func fillZero(f *os.File, length int64) error {
	zero := make([]byte, 1<<20)
	for off := int64(0); off < length; off += int64(len(zero)) {
		if _, err := f.WriteAt(zero[:min(int64(len(zero)), length-off)], off); err != nil {
			return err
		}
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}
