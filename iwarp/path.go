package iwarp

import (
	"viaduct/internal/sock"
	"viaduct/samehost"
)

// Path reports whether the stream uses shared memory or TCP, and why.
func (q *QueuePair) Path() samehost.Path {
	if q.conn == nil {
		return samehost.Path{Why: "there is no connection"}
	}
	return sock.PathOf(q.conn)
}
