//go:build race

package sock

import "syscall"

// To the race detector, whatever happens before a write to any socket happens before a later read:
// package syscall declares that in Read and Write, and programs rely on it. The raw calls of this
// package have to declare it as well. A call of syscall.Read or Write with no bytes does so, for
// any descriptor. The write does not use the socket itself, because it would consume an error the
// next real write must report.

func raceRelease(int)    { syscall.Write(-1, nil) }
func raceAcquire(fd int) { syscall.Read(fd, nil) }
