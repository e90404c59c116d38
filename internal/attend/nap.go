package attend

import "time"

// maxNaps is the largest number of goroutines in TryNap at a time, because each occupies a thread.
const maxNaps = 4

// TryNap sleeps for d, which is less than the shortest time of a timer in an otherwise idle process,
// a millisecond. It returns false without sleeping if the system cannot sleep so briefly, or if too
// many goroutines do so.
func TryNap(d time.Duration) bool {
	defer process.naps.Add(-1)
	if process.naps.Add(1) > maxNaps || !CanNap {
		return false
	}
	Nap(d)
	return true
}
