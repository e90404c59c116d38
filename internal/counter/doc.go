// Package counter has counters that one goroutine at a time writes and any goroutine reads.
//
// An atomic store waits until other processors see all earlier stores. A short message changes
// several counters; a counter of this package costs only an ordinary instruction.
//
// A [Counter] has one writer at a time: the writer holds a lock or a role that excludes others. Any
// goroutine may read it meanwhile. The read is atomic and returns a value that was written, at the
// oldest the last value before the writer released its lock. The writer's store is atomic as well
// where a 64-bit word takes two stores, and in builds with the race detector, which does not know
// this rule.
package counter
