package iwarp

import (
	"errors"
	"syscall"
)

// SyscallConn gives access to the options of the TCP socket below the stream. Use only Control of
// the result: reading and writing belong to the stream. The error is errors.ErrUnsupported if there
// is no socket, or ErrClosed before the stream is up.
func (q *QueuePair) SyscallConn() (syscall.RawConn, error) {
	if !q.ready.Load() {
		return nil, ErrClosed
	}
	sc, ok := q.fc.NetConn().(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return sc.SyscallConn()
}
