package attend

import (
	"runtime"
	"sync/atomic"
)

// process is what the connections of the process share: the goroutines that serve many of them, and
// the counts of what others do at the moment. init sets the fields whose zero value is no use.
var process struct {
	// processors is the number of processors. The number is atomic, because tests change it while
	// goroutines of earlier tests read.
	processors atomic.Int32

	parked   atomic.Int32 // goroutines that wait through the runtime
	spinning atomic.Int32 // consumers that poll before a sleep
	pauses   atomic.Int32 // attendants that let frames accumulate
	naps     atomic.Int32 // goroutines in TryNap
	recent   history
	sleeper  Sleeper

	pollers    pollerSet
	attendants sweeper
	workers    workers

	// These counts are for tests.
	gathers atomic.Uint32 // pauses of shared pollers between two rounds
	drained atomic.Uint32 // arrivals announced by pairs
}

func init() {
	process.processors.Store(int32(runtime.GOMAXPROCS(0)))
	process.sleeper.period = Period
}
