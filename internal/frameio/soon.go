package frameio

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/internal/doze"
)

// soon is how long somebody who waits for an answer looks for it before he
// sleeps. Waking a goroutine whose processor went idle takes about as long.
const soon = 100 * time.Microsecond

var (
	// looking is how many goroutines look just now. One of them is enough where
	// many connections are made at a time.
	looking atomic.Int32

	looks doze.Looks // of all
)

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
	if !looks.Worth() {
		return false
	}
	defer looking.Add(-1)
	if looking.Add(1) > 1 {
		return false
	}
	for start := time.Now(); time.Since(start) < soon; {
		// What else this process has to do, such as ending the connection before
		// this one, is better done here than by a thread that is woken for it
		// and takes the other end's processor.
		runtime.Gosched()
		if try() {
			looks.Done(true)
			return true
		}
	}
	looks.Done(false)
	return false
}

// waitSoon is raw.Read(try) for a caller who expects an answer: try looks for a
// moment, as by Soon, before the first sleep.
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

// ReadSoon is nc.Read for a caller who expects an answer: where that is
// possible it looks for a moment before it sleeps. Deadlines of nc hold, but
// for that moment.
func ReadSoon(nc net.Conn, p []byte) (int, error) {
	if n, err, ok := readSoon(nc, p, false); ok {
		return n, err
	}
	return nc.Read(p)
}

// PeekSoon is ReadSoon, but the bytes stay where they are. ok is false if nc
// can't do that.
func PeekSoon(nc net.Conn, p []byte) (n int, err error, ok bool) { return readSoon(nc, p, true) }
