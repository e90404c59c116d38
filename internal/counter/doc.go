// Package counter has counters for a single writing goroutine at a time and any number of readers.
//
// An atomic store waits until other processors see all earlier stores. A short message changes
// several counters; a counter of this package costs only an ordinary instruction.
//
// A [Counter] has one writer at a time: the writer holds a lock or a role that excludes other
// writers. Any goroutine may read meanwhile. The read is atomic and returns a written value, at the
// oldest the last value before the writer released the lock. The writer's store is atomic as well
// where a 64-bit word takes two stores, and in builds with the race detector, because the race
// detector does not know the rule.
package counter
