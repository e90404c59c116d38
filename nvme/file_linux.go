package nvme

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A file is a disk that frees the space of discarded ranges.
type file struct{ *os.File }

// Discard implements [Discarder].
func (f file) Discard(off, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		switch {
		case err == unix.EINTR:
		case errors.Is(err, unix.EOPNOTSUPP):
			return writeZeroes(f, off, n)
		default:
			return err
		}
	}
}
