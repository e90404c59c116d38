//go:build race

package shm

import "sync/atomic"

// The race detector does not know positions in shared memory. Where both ends of a
// ring are in one process, what happened before a position was published happened
// before it was read: the same is said of a variable that the detector knows.
var published atomic.Uint64

func raceRelease() { published.Add(1) }
func raceAcquire() { published.Load() }
