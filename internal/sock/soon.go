package sock

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/internal/budget"
)

// soon is how long a call that waits for an answer polls for it before it
// sleeps. Waking a goroutine whose processor went idle takes about as long.
const soon = 100 * time.Microsecond

var (
	// polling is the number of goroutines that poll for an answer. One of them
	// is enough where many connections are made at a time.
	polling atomic.Int32

	// answers is the budget of all of them, and seldom its rule.
	answers budget.Budget
	seldom  = budget.Rule{Grace: 4, Max: 15}
)

// Soon calls try until it reports that it is done, for 100 us at most, and
// reports whether it did. It calls it at least once. It is for answers that are
// on their way.
func Soon(try func() bool) bool {
	if try() {
		return true
	}
	if runtime.GOMAXPROCS(0) == 1 || !answers.Worth() { // with one, the other end may need the processor
		return false
	}
	defer polling.Add(-1)
	if polling.Add(1) > 1 {
		return false
	}
	for start := time.Now(); time.Since(start) < soon; {
		// What else this process has to do is better done here than by a thread that is
		// woken for it and takes the other end's processor.
		runtime.Gosched()
		if try() {
			answers.Hit(&seldom)
			return true
		}
	}
	answers.Miss(&seldom)
	return false
}

// waitSoon is raw.Read(try) for a caller that expects an answer: it calls try as
// Soon does before the first sleep.
func waitSoon(raw syscall.RawConn, try func(fd uintptr) bool) error {
	looked := false
	return raw.Read(func(fd uintptr) bool {
		if looked {
			return try(fd)
		}
		looked = true
		return Soon(func() bool { return try(fd) })
	})
}

// ReadSoon is nc.Read for a caller that expects an answer: where that is possible
// it polls for 100 us before it sleeps. Deadlines of nc hold, but for that time.
func ReadSoon(nc net.Conn, p []byte) (int, error) {
	if n, err, ok := readSoon(nc, p, plainly); ok {
		return n, err
	}
	return nc.Read(p)
}
