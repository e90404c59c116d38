//go:build unix

package transport

import "golang.org/x/sys/unix"

// sharedWord returns memory for one word, to be freed by freeWord. This process changes the word
// while the stack may read the word for the peer. The memory is outside of the Go heap, because the
// race detector would report a race. The read is safe, because an aligned word is read in a single
// access.
func sharedWord() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return b, nil
}

func freeWord(b []byte) { unix.Munmap(b) }
