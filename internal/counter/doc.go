// Package counter counts what one goroutine at a time does, for others to read. An
// atomic store waits until all stores before it are seen by other processors, and a short
// message moves several counters: here that takes an ordinary instruction each.
//
// A [Counter] has one writer at a time: what changes it holds a lock or a role that
// makes it so. Any goroutine may read it meanwhile: it loads the word atomically, and
// sees a value that was written, at the latest the one from before the writer last gave
// its lock back. Where a word of 64 bits takes two stores, and for the race detector, which
// can't know this, the writer's store is atomic.
package counter
