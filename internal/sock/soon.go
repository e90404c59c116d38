package sock

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/internal/budget"
)

// soon is how long a call that waits for an answer polls before it sleeps. Waking a
// goroutine whose processor was idle takes about as long.
const soon = 100 * time.Microsecond

var (
	// polling is the number of goroutines that poll for an answer at this moment. Soon admits one,
	// which is enough for a process that makes many connections at a time.
	polling atomic.Int32

	// answers is the polling budget of all callers of Soon, with the rule seldom.
	answers budget.Budget
	seldom  = budget.Rule{Grace: 4, Max: 15}
)

// Soon calls try until it returns true, for 100 us at most, and reports whether it did. Soon calls
// try only once on a single processor, while another goroutine polls, or if polling has seldom
// succeeded lately. Soon is for answers that are on their way. It is safe for concurrent use.
func Soon(try func() bool) bool {
	if try() {
		return true
	}
	if runtime.GOMAXPROCS(0) == 1 || !answers.Worth() { // with one processor, the other end may need it
		return false
	}
	defer polling.Add(-1)
	if polling.Add(1) > 1 {
		return false
	}
	for start := time.Now(); time.Since(start) < soon; {
		// Other goroutines of this process better run here than in a thread that would be woken for them,
		// and that would take the other end's processor.
		runtime.Gosched()
		if try() {
			answers.Hit(&seldom)
			return true
		}
	}
	answers.Miss(&seldom)
	return false
}

// waitSoon is raw.Read(try) for a caller that expects an answer soon: before the first sleep it
// polls as Soon does.
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

// ReadSoon is nc.Read for a caller that expects an answer soon: it polls for 100 us before it
// sleeps, if nc gives access to its descriptor. Deadlines of nc are not checked during this time.
func ReadSoon(nc net.Conn, p []byte) (int, error) {
	if n, err, ok := readSoon(nc, p, plainly); ok {
		return n, err
	}
	return nc.Read(p)
}
