//go:build race

package shm

import "sync/atomic"

// The race detector does not observe positions in shared memory. If both ends of a ring are in one
// process, everything before the publication of a position happens before the position is read. A
// variable observed by the detector expresses the order.
var published atomic.Uint64

func raceRelease() { published.Add(1) }
func raceAcquire() { published.Load() }
