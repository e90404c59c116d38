//go:build race

package sock

import "syscall"

// For the race detector, what happened before a write to any socket happened
// before a read that follows it: package syscall says so in Read and Write,
// and programs rely on it. The raw calls of this package have to say it too.
// Reading or writing nothing does.

func raceRelease(fd int) { syscall.Write(fd, nil) }
func raceAcquire(fd int) { syscall.Read(fd, nil) }
