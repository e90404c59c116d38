//go:build unix

package transport

import "golang.org/x/sys/unix"

// sharedWord is memory for a word that the stack reads whenever the peer asks,
// while we change it. It lies outside of Go's memory, since to Go's rules such
// a read is a race; in truth an aligned word is read at once.
func sharedWord() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return b, nil
}

func freeWord(b []byte) { unix.Munmap(b) }
