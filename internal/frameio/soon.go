package frameio

import (
	"net"
	"runtime"
	"time"
)

// soon is how long ReadSoon looks before it sleeps. Waking a goroutine whose
// processor went idle takes about as long.
const soon = 50 * time.Microsecond

// ReadSoon is nc.Read for a caller who expects an answer: where that is
// possible it looks for a moment before it sleeps. Deadlines of nc hold, but
// for that moment.
func ReadSoon(nc net.Conn, p []byte) (int, error) {
	if runtime.GOMAXPROCS(0) == 1 {
		return nc.Read(p) // the other end may need the processor
	}
	if n, err, ok := readSoon(nc, p); ok {
		return n, err
	}
	return nc.Read(p)
}
