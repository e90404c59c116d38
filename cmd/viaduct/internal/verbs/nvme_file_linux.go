package verbs

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A holeFile is a file that frees the space of discarded ranges, if its file system can do so.
type holeFile struct{ *os.File }

// diskFile returns a file as a disk.
func diskFile(f *os.File) io.ReaderAt { return holeFile{f} }

// Discard implements [nvme.Discarder].
func (f holeFile) Discard(off, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		switch {
		case err == unix.EINTR:
		case errors.Is(err, unix.EOPNOTSUPP):
			return f.writeZeroes(off, n)
		default:
			return err
		}
	}
}

func (f holeFile) writeZeroes(off, n int64) error {
	zeroes := make([]byte, min(n, 1<<20))
	for n > 0 {
		k := min(n, int64(len(zeroes)))
		if _, err := f.WriteAt(zeroes[:k], off); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}
