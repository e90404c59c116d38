package iwarp

import (
	"viaduct/internal/sock"
	"viaduct/samehost"
)

// Path returns how the bytes of the stream go.
func (q *QueuePair) Path() samehost.Path {
	if q.conn == nil {
		return samehost.Path{Why: "there is no connection"}
	}
	return sock.PathOf(q.conn)
}
