package shm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CreatePair returns a Pair in new memory, sealed against changes of size. fd is the descriptor of
// the memory. The caller owns fd, sends it to the peer and closes it.
func CreatePair() (p *Pair, fd int, err error) {
	if fd, err = memfd("viaduct-pair"); err != nil {
		return nil, -1, fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("memfd_create", err))
	}
	if err = unix.Ftruncate(fd, pairSize); err == nil {
		// The page exists from here on, so that no access can fail for lack of memory.
		err = unix.Fallocate(fd, 0, 0, pairSize)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	var b []byte
	if err == nil {
		b, err = mmap(fd, pairSize)
	}
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	return newPair(b, true), fd, nil
}

// OpenPair returns the Pair in the memory of descriptor fd, created by another process. It checks
// the memory like [Open]. The caller still owns fd.
func OpenPair(fd int) (*Pair, error) {
	if err := check(fd, pairSize); err != nil {
		return nil, err
	}
	b, err := mmap(fd, pairSize)
	if err != nil {
		return nil, err
	}
	return newPair(b, false), nil
}

// Close unmaps the memory. The Pair must not be used any more.
func (p *Pair) Close() { unix.Munmap(p.b) }
