//go:build race

package sock

import "syscall"

// Package syscall declares to the race detector that a write to any socket happens before a later
// read from any socket, and programs rely on the order. The raw calls here have to declare the same
// order. A call of syscall.Read or Write with no bytes is such a declaration, for any descriptor.
// raceRelease does not write to the socket itself, because the write would consume an error meant
// for the next real write.

func raceRelease(int)    { syscall.Write(-1, nil) }
func raceAcquire(fd int) { syscall.Read(fd, nil) }
