package frameio

import (
	"net"
	"runtime"
	"sync/atomic"
	"time"
)

// soon is how long somebody who waits for an answer looks for it before he
// sleeps. Waking a goroutine whose processor went idle takes about as long.
const soon = 50 * time.Microsecond

// looking is how many goroutines look just now. One of them is enough where
// many connections are made at a time.
var looking atomic.Int32

// Soon calls try until it says that it is done, for a moment at most, and
// reports whether it did. It calls it at least once. For answers that are on
// their way.
func Soon(try func() bool) bool {
	if try() {
		return true
	}
	if runtime.GOMAXPROCS(0) == 1 { // the other end may need the processor
		return false
	}
	defer looking.Add(-1)
	if looking.Add(1) > 1 {
		return false
	}
	for start := time.Now(); time.Since(start) < soon; {
		if try() {
			return true
		}
	}
	return false
}

// ReadSoon is nc.Read for a caller who expects an answer: where that is
// possible it looks for a moment before it sleeps. Deadlines of nc hold, but
// for that moment.
func ReadSoon(nc net.Conn, p []byte) (int, error) {
	if n, err, ok := readSoon(nc, p); ok {
		return n, err
	}
	return nc.Read(p)
}
