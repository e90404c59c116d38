package verbs

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// lockPart marks the file as in use by this process for as long as the file is open. ok is false if
// another process has locked the file. The locked range is beyond the end of any file, since
// Windows enforces locks.
func lockPart(f *os.File) (ok bool, err error) {
	at := windows.Overlapped{Offset: math.MaxUint32, OffsetHigh: math.MaxInt32}
	err = windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}
