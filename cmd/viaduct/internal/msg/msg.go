// Package msg is the interface between the verbs of the command and the transports for messages and
// RDMA. With package msg, echo, ping, nc, and the memory service are each written once.
package msg

import (
	"context"
	"errors"
	"net"

	"viaduct/samehost"
)

// Access is a set of rights the peer has to registered memory.
type Access uint8

// Rights of a region, in any combination. Local use is always allowed.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
	// Guarded marks the mapping of a file that another process may truncate. A faulting access then
	// fails only its own transfer.
	Guarded
)

// A Region is registered memory of one connection.
type Region interface {
	// Remote returns the address of the region, to be sent to the peer.
	Remote() Remote
	// Close ends the peer's access. After Close has returned, nothing accesses the memory.
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
	// Wide is the immediate data of a message without other data, if IsWide (iwarp).
	Wide   [8]byte
	IsWide bool
}

// ErrTooLong is what Send returns for a message longer than MaxMessage.
var ErrTooLong = errors.New("message longer than the connection takes")

// ErrBroken is the error of a failed connection, as opposed to a connection closed by the peer.
var ErrBroken = errors.New("the connection broke")

// A RemoteAccessError reports memory access refused by the other side: the range does not exist, or
// the right is not granted.
type RemoteAccessError struct{ Cause error }

func (e *RemoteAccessError) Error() string {
	return "the other side does not give access to its memory: " + e.Cause.Error()
}
func (e *RemoteAccessError) Unwrap() error { return e.Cause }

// A Conn is a connection. Recv may run concurrently with the other calls. Only one goroutine at a
// time may use the other calls. Errors after an orderly close by the peer match io.EOF.
type Conn interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	// Path reports whether the bytes go through shared memory.
	Path() samehost.Path

	// MaxMessage is the longest message, and the longest write or read, in bytes.
	MaxMessage() int
	// Send sends a message and returns when m.Data may be used again.
	Send(ctx context.Context, m Message) error
	// Recv waits for a message.
	Recv(ctx context.Context) (Message, error)

	// Register lends memory to the connection until the region is closed.
	Register(b []byte, a Access) (Region, error)
	// PostWrite starts to copy n bytes, from offset off of a local region to remote memory.
	// PostRead copies in the other direction. Reap waits for the oldest unreaped copy.
	PostWrite(local Region, off, n int, remote Remote) error
	PostRead(local Region, off, n int, remote Remote) error
	Reap(ctx context.Context) error
	// Depth returns how many writes and reads may be outstanding.
	Depth() (writes, reads int)

	// Shutdown declares the end of sending, and waits until the peer has received all messages, as
	// far as the protocol allows.
	Shutdown(ctx context.Context) error
	// Close ends the connection in the way of the protocol.
	Close() error
}

// A Listener accepts connections.
type Listener interface {
	Accept(ctx context.Context) (Conn, error)
	Addr() net.Addr
	Close() error
}
