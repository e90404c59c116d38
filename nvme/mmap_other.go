//go:build !linux && !darwin

package nvme

import (
	"errors"
	"os"
)

func mmap(*os.File, int64, bool) ([]byte, error) { return nil, errors.ErrUnsupported }

func munmap([]byte) {}

func msync([]byte) error { return nil }
