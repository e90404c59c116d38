package rocecore

import (
	"net/netip"
	"time"

	"viaduct/internal/wire/ib"
)

// A Time is a time since an origin of the driver's choice.
type Time = time.Duration

// A Buffer is the local memory of a request or a receive: its elements, one behind the other.
// Errors mean that the memory is not, or no longer, there.
type Buffer interface {
	Len() int
	ReadAt(p []byte, off int) error
	WriteAt(p []byte, off int) error
}

// A Receive is a posted receive.
type Receive struct {
	ID  uint64
	Buf Buffer
}

// An Access is a set of things that a peer may do.
type Access uint8

// The rights.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
	RemoteAtomic
)

// A Place is memory as a peer names it.
type Place struct {
	VA  uint64
	Key uint32
}

// A Verdict is how an access by a peer ended.
type Verdict uint8

// The verdicts.
const (
	Allowed    Verdict = iota
	Refused            // key, rights or bounds do not allow it, or the memory is gone
	Misaligned         // an atomic operation on an address that is no multiple of 8
)

// A Host is what a queue pair belongs to: memory that peers name, receives and completions. Its
// methods are called by the methods of the queue pair; they must not call these, and must not wait
// for a peer.
type Host interface {
	// Check reports whether a peer may use n bytes at p, without touching them.
	Check(p Place, n uint64, a Access) Verdict
	// Write copies b to p, and Read copies from p to b, under the checks of Check.
	Write(p Place, b []byte) Verdict
	Read(p Place, b []byte) Verdict
	// Atomic performs op, FetchAdd or CompareSwap, on the 8 bytes at p, and returns what they were.
	Atomic(op Op, p Place, swapAdd, compare uint64) (old uint64, v Verdict)
	// Invalidate makes a key invalid that the peer may invalidate.
	Invalidate(key uint32) Verdict

	// NextReceive takes the oldest posted receive. It then belongs to the queue pair until Received.
	NextReceive() (Receive, bool)

	// RequestDone gives a posted request back. Requests are done in the order they were posted.
	RequestDone(r *Request, c Completion)
	// Received gives a receive back.
	Received(r Receive, a Arrival)
	// Refused tells that a request of the peer is answered with a NAK which ends the connection.
	// Failed follows.
	Refused(nak ib.Syndrome)
	// Failed tells that the queue pair is in error: all requests are given back, and nothing is
	// received any more. The host flushes the receives it still holds.
	Failed(s Status)
}

// An Op is the operation of a request.
type Op uint8

// The operations.
const (
	Send Op = iota
	SendInvalidate
	Write
	Read
	FetchAdd
	CompareSwap
)

// A Request is a request to send, write, read, or change a word of the peer's memory.
type Request struct {
	ID     uint64
	Op     Op
	Buf    Buffer // nil for no bytes
	Remote Place  // of Write, Read, FetchAdd, CompareSwap
	Key    uint32 // that SendInvalidate invalidates

	HasImm bool // of Send and Write
	Imm    ib.ImmDt

	SwapAdd, Compare uint64 // of FetchAdd, CompareSwap

	Fence      bool // wait until all Reads and atomic operations before are complete
	Solicited  bool
	Unsignaled bool // for the host: no completion unless it fails

	To Destination // of a datagram
}

// A Destination is where a datagram goes.
type Destination struct {
	Addr netip.Addr
	QPN  uint32
	QKey uint32
}

func (r *Request) length() int {
	if r.Buf == nil {
		return 0
	}
	return r.Buf.Len()
}

func (r *Request) kind() ib.Kind {
	switch r.Op {
	case Write:
		return ib.Write
	case Read:
		return ib.Read
	case FetchAdd, CompareSwap:
		return ib.Atomic
	}
	return ib.Send
}

// A Completion is how a request ended.
type Completion struct {
	Status Status
	Value  uint64 // what the word was before an atomic operation
}

// An Arrival is what was received.
type Arrival struct {
	Status    Status
	Len       int  // bytes in the receive, or of an RDMA Write with immediate data
	Write     bool // an RDMA Write with immediate data; the receive is untouched
	HasImm    bool
	Imm       ib.ImmDt
	HasInv    bool
	Key       uint32 // with HasInv: the key that was invalidated
	Solicited bool
	Source    uint32 // queue pair that sent a datagram
}

// A Status says how a request or a receive ended.
type Status uint8

// The statuses.
const (
	OK                   Status = iota
	Flushed                     // not done, because the queue pair is in error
	LocalLength                 // receive: the message is longer
	LocalProtection             // local memory is not, or no longer, there
	BadResponse                 // a response that does not fit its request
	RemoteInvalidRequest        // the responder does not take the request
	RemoteAccess                // the responder does not allow it
	RemoteOperation             // the responder failed
	RetryExceeded               // no response
	RNRRetryExceeded            // the responder had no receive
)

var statusNames = [...]string{"ok", "flushed", "local length error", "local protection error", "bad response",
	"remote invalid request", "remote access error", "remote operation error", "retry exceeded", "RNR retry exceeded"}

// String names the status.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown status"
}
