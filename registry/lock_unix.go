//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockPause is the pause between two attempts to get a lock held by another process.
const lockPause = 5 * time.Millisecond

// lockFile takes the lock at path. The system releases the lock when the process ends. The file is
// not removed, because two processes could then lock different files of the same name.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return func() { f.Close() }, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: another process has it: %w", path, context.Cause(ctx))
		case <-time.After(lockPause):
		}
	}
}
