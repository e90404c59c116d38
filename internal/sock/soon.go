package sock

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"

	"viaduct/internal/budget"
)

// answers is what all callers of Soon share.
var answers struct {
	// polling is the number of goroutines now polling for an answer. Soon admits a single
	// goroutine, enough for a process with many set-ups at a time.
	polling atomic.Int32

	budget.Budget // whether to poll, with the rule Answer
}

// Soon calls try until it returns true, for 100 us at most, and reports whether it did. Soon calls
// try only once on a single processor, while another goroutine polls, or if polling has seldom
// succeeded lately. Soon is for answers already under way, and is safe for concurrent use.
func Soon(try func() bool) bool {
	if try() {
		return true
	}
	if runtime.GOMAXPROCS(0) == 1 || !answers.Worth() { // with one processor, the other end may need it
		return false
	}
	defer answers.polling.Add(-1)
	if answers.polling.Add(1) > 1 {
		return false
	}
	// Other goroutines of this process better run here than in a newly woken thread, which would take
	// the other end's processor.
	runtime.Gosched()
	return answers.Poll(&budget.Answer, func() budget.Outcome {
		if try() {
			return budget.Found
		}
		return budget.Nothing
	}) == budget.Found
}

// TryOnce, for tests, makes Soon call try only once, until undo is called. In a bubble of synctest no
// time passes while a goroutine polls, so Soon would never end.
func TryOnce() (undo func()) {
	answers.polling.Add(1) // as if another goroutine polled
	return func() { answers.polling.Add(-1) }
}

// waitSoon is raw.Read(try) for an answer expected soon: before the first sleep, waitSoon polls as
// Soon does.
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

// ReadSoon is nc.Read for an answer expected soon: before the first sleep it polls for 100 us, if
// nc gives access to the descriptor. Deadlines of nc are not checked meanwhile.
func ReadSoon(nc net.Conn, p []byte) (int, error) {
	if n, err, ok := readSoon(nc, p, plainly); ok {
		return n, err
	}
	return nc.Read(p)
}
