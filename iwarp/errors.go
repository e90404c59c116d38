package iwarp

import (
	"fmt"
	"net"
	"os"
)

// closedError is the type of ErrClosed, and matches net.ErrClosed.
type closedError struct{}

func (closedError) Error() string        { return "iwarp: stream is closed" }
func (closedError) Is(target error) bool { return target == net.ErrClosed }

// timeoutError is the type of ErrTimeout, the error of start-up and idle timers.
type timeoutError struct{}

func (timeoutError) Error() string        { return "iwarp: timed out" }
func (timeoutError) Timeout() bool        { return true }
func (timeoutError) Temporary() bool      { return false }
func (timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

var _ net.Error = timeoutError{}

// A RejectedError is the error of Dial and Client if the peer's ULP rejected the connection.
type RejectedError struct { // [MPA-7.1.1-12] [MPA-7.1.2-13]
	Private  []byte // private data of the peer: input from the network
	IRD, ORD int    // depths in the Reply: the depths that the peer would have needed

	// Conn is the TCP connection if InitiatorConfig.KeepConn is set, otherwise nil. Conn belongs to the
	// caller. Unread holds bytes already read from Conn.
	Conn   net.Conn
	Unread []byte

	// Requirements: IRD, ORD [MPA2-9.1-14].
}

// Error returns a text with the length of the private data and the depths, but not the data itself.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("iwarp: connection rejected by the peer (%d bytes of private data, IRD %d, ORD %d)",
		len(e.Private), e.IRD, e.ORD)
}
