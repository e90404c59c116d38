//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package verbs

import (
	"errors"
	"os"
	"syscall"
)

// lockPart marks the file as in use by this process for as long as the file is open. ok is false if
// another process has locked the file.
func lockPart(f *os.File) (ok bool, err error) {
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, nil
	case errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENOLCK):
		return true, nil // the file system has no locks
	}
	return err == nil, err
}
