package perftest

import (
	"golang.org/x/sys/unix"

	"viaduct/iwarp"
)

// unacknowledged returns the number of bytes not yet sent by TCP or not yet acknowledged by the
// peer; ok is false if the stream has no socket.
func unacknowledged(q *iwarp.QueuePair) (n int, ok bool) {
	raw, err := q.SyscallConn()
	if err != nil {
		return 0, false
	}
	if e := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); e != nil || err != nil {
		return 0, false
	}
	return n, true
}
