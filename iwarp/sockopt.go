package iwarp

import (
	"errors"
	"syscall"
)

// SyscallConn gives access to the options of the TCP socket below the stream. Use only Control of
// the result: only the stream may read and write. The error is errors.ErrUnsupported if there is no
// socket, or ErrClosed during start-up.
func (q *QueuePair) SyscallConn() (syscall.RawConn, error) {
	if !q.link.ready.Load() {
		return nil, ErrClosed
	}
	sc, ok := q.link.fc.NetConn().(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return sc.SyscallConn()
}
