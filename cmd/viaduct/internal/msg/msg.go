// Package msg is what the verbs of the command need of a transport that
// carries messages and moves memory: one interface, so that echo, ping, nc,
// and the memory service are written once.
package msg

import (
	"context"
	"errors"
	"net"

	"viaduct/samehost"
)

// Access says what the peer may do with registered memory.
type Access uint8

// Rights that can be combined; local use is always allowed.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
	// Guarded says that the memory is a mapped file which another process may
	// truncate: touching it then fails that transfer and nothing else.
	Guarded
)

// A Region is registered memory of one connection.
type Region interface {
	// Remote is where the peer finds the region.
	Remote() Remote
	// Close takes the memory back; when it returns nothing touches it any more.
	Close() error
}

// Remote names memory of the other side.
type Remote struct {
	Address uint64
	Handle  uint32
}

// A Message is one received message.
type Message struct {
	Data   []byte // valid until the next Recv
	Imm    uint32 // immediate data, if HasImm (vitcp, fcvi)
	HasImm bool
	// Wide is a message that is immediate data alone, if IsWide (iwarp).
	Wide   [8]byte
	IsWide bool
}

// ErrTooLong is what Send returns for a message longer than MaxMessage.
var ErrTooLong = errors.New("message longer than the connection takes")

// ErrBroken is what a connection ended by that the peer did not end.
var ErrBroken = errors.New("the connection broke")

// A RemoteAccessError is what the memory of the other side was not for: it does
// not have that range any more, or never had.
type RemoteAccessError struct{ Cause error }

func (e *RemoteAccessError) Error() string {
	return "the other side does not give access to its memory: " + e.Cause.Error()
}
func (e *RemoteAccessError) Unwrap() error { return e.Cause }

// A Conn is a connection. Recv may run beside the other calls; the others are
// for one goroutine at a time. Errors after the peer closed in order match
// io.EOF.
type Conn interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	// Path tells whether the bytes go through shared memory.
	Path() samehost.Path

	// MaxMessage is the longest message, and the longest write or read, in bytes.
	MaxMessage() int
	// Send sends a message and returns when data may be used again.
	Send(ctx context.Context, m Message) error
	// Recv waits for a message.
	Recv(ctx context.Context) (Message, error)

	// Register lends memory to the connection until the region is closed.
	Register(b []byte, a Access) (Region, error)
	// PostWrite begins to copy n bytes at off of a local region to remote
	// memory, PostRead the other way. Reap waits for the oldest one posted.
	PostWrite(local Region, off, n int, remote Remote) error
	PostRead(local Region, off, n int, remote Remote) error
	Reap(ctx context.Context) error
	// Depth is how many writes and reads may be outstanding.
	Depth() (writes, reads int)

	// Shutdown says that nothing more will be sent and waits, as far as the
	// protocol allows, until the peer has what was sent.
	Shutdown(ctx context.Context) error
	// Close ends the connection as its protocol says.
	Close() error
}

// A Listener accepts connections.
type Listener interface {
	Accept(ctx context.Context) (Conn, error)
	Addr() net.Addr
	Close() error
}
