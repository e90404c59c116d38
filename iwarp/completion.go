package iwarp

import (
	"errors"
	"fmt"
	"io"
)

// A Status says how a request ended.
type Status uint8

// The statuses.
const (
	StatusOK          Status = iota
	StatusFlushed            // the stream or the peer's direction ended before the request was done
	StatusLocalAccess        // local memory of the request became inaccessible
	StatusLength             // receive: the message was longer than the buffer
	StatusRemote             // the peer refused this request with a Terminate
)

// The errors of [Completion.Err] for the statuses.
var (
	ErrFlushed     = errors.New("iwarp: request flushed")
	ErrLocalAccess = errors.New("iwarp: local memory of the request is not accessible")
	ErrLength      = errors.New("iwarp: message longer than the receive buffer")
	ErrRemote      = errors.New("iwarp: request refused by the peer")
)

// String returns the name of the status, or the number of an unknown status.
func (s Status) String() string {
	switch s {
	case StatusOK:
		return "ok"
	case StatusFlushed:
		return "flushed"
	case StatusLocalAccess:
		return "local access error"
	case StatusLength:
		return "length error"
	case StatusRemote:
		return "remote error"
	}
	return fmt.Sprintf("status 0x%02x", uint8(s))
}

// err returns the error of the status, or nil for StatusOK.
func (s Status) err() error {
	switch s {
	case StatusOK:
		return nil
	case StatusLocalAccess:
		return ErrLocalAccess
	case StatusLength:
		return ErrLength
	case StatusRemote:
		return ErrRemote
	}
	return ErrFlushed
}

// A Completion reports the end of a request.
type Completion struct { // [RDMAP-3.2-2]
	ID     uint64 // ID of the request
	QP     *QueuePair
	Op     Op     // OpRecv for a receive
	Status Status // StatusOK, or why the request failed

	// Len is the number of bytes received or read. It is 0 for all other operations and statuses.
	Len uint32

	// These five fields are set only for receives that succeeded.
	Solicited   bool    // the peer asked for an event at the receiver
	Invalidated bool    // the message invalidated STag
	HasImm      bool    // the message was Immediate Data; the buffer is unchanged
	STag        uint32  // the invalidated STag, if Invalidated is set
	Imm         [8]byte // the immediate data, if HasImm is set

	// Value is the value of the word before an Atomic Operation; 0 for other operations.
	Value uint64

	// Requirements: Len [DDP-5.4-3] [RDMAP-5.3-3], HasImm [I-66].
}

// Err returns the error of the status, or nil if the request succeeded. The error of a flushed
// request also wraps the reason, if known: the error of [QueuePair.Err], such as a *TerminateError,
// or io.EOF for a receive after the peer has closed its direction in order.
func (c *Completion) Err() error {
	if c.Status != StatusFlushed || c.QP == nil {
		return c.Status.err()
	}
	cause := c.QP.Err()
	if cause == nil && c.Op == OpRecv && c.QP.life.peerEnd.has() {
		cause = io.EOF
	}
	if cause == nil {
		return ErrFlushed
	}
	return fmt.Errorf("%w: %w", ErrFlushed, cause)
}

// taken frees the queue slots of the requests whose completions cs a consumer has polled.
func taken(cs []Completion) {
	for i := 0; i < len(cs); {
		c := &cs[i]
		n := int64(1)
		for i++; i < len(cs) && cs[i].QP == c.QP && (cs[i].Op == OpRecv) == (c.Op == OpRecv); i++ {
			n++
		}
		c.QP.taken(c.Op, n)
	}
}

func (q *QueuePair) taken(op Op, n int64) {
	if op == OpRecv {
		q.recvs.taken(n)
	} else {
		q.sends.used.Add(-n)
	}
}
