// Package counter counts what one goroutine at a time does, for others to read. An
// atomic addition costs as much as a hundred other instructions of a short message, which
// has several counters; these cost one.
//
// A [Counter] has one writer at a time: what changes it holds a lock or a role that
// makes it so. Any goroutine may read it meanwhile. The writer's addition is then an
// ordinary one, and readers load the word atomically, which sees a value that was
// written. Where a word of 64 bits takes two stores, and for the race detector, which
// can't know this, the addition is an atomic store.
package counter
