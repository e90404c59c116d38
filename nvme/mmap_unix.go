//go:build linux || darwin

package nvme

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

func mmap(f *os.File, size int64, write bool) ([]byte, error) {
	if size > math.MaxInt {
		return nil, unix.ENOMEM
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), prot, unix.MAP_SHARED)
	return b, os.NewSyscallError("mmap", err)
}

func munmap(b []byte) { unix.Munmap(b) }

func msync(b []byte) error { return os.NewSyscallError("msync", unix.Msync(b, unix.MS_SYNC)) }
