//go:build race

package sock

import "syscall"

// For the race detector, what happened before a write to any socket happened
// before a read that follows it: package syscall says so in Read and Write,
// and programs rely on it. The raw calls of this package have to say it too.
// Reading or writing nothing does, whatever the descriptor. Writing nothing to the
// socket itself would take the error that it has for the write to come.

func raceRelease(int)    { syscall.Write(-1, nil) }
func raceAcquire(fd int) { syscall.Read(fd, nil) }
