package rocecore

import (
	"net/netip"
	"time"

	"viaduct/internal/wire/ib"
)

// A Time is the time since an origin that the driver chooses.
type Time = time.Duration

// A Buffer is the local memory of a request or receive, as one range of bytes. ReadAt and WriteAt
// return an error if the memory does not exist any more.
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

// An Access is a set of rights of a peer.
type Access uint8

// The rights.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
	RemoteAtomic
)

// A Place is an address and a key, by which a peer names memory.
type Place struct {
	VA  uint64
	Key uint32
}

// A Verdict is the result of an access by a peer.
type Verdict uint8

// The verdicts.
const (
	Allowed    Verdict = iota
	Refused            // key, rights or bounds do not allow the access, or the memory is gone
	Misaligned         // the address of an atomic operation is not a multiple of 8
)

// A Host owns a queue pair. It provides the memory accessed by peers and the posted receives, and
// takes the completions. The queue pair calls the methods of a Host from its own methods. So a
// method of a Host must not call the queue pair, and must not wait for a peer.
type Host interface {
	// Check reports whether a peer may access n bytes at p. It does not access the memory.
	Check(p Place, n uint64, a Access) Verdict
	// Write copies b to p, and Read copies from p to b, after the same checks as Check.
	Write(p Place, b []byte) Verdict
	Read(p Place, b []byte) Verdict
	// Atomic performs op, FetchAdd or CompareSwap, on the 8 bytes at p, and returns their old
	// value.
	Atomic(op Op, p Place, swapAdd, compare uint64) (old uint64, v Verdict)
	// Invalidate makes key invalid, if the peer may invalidate it.
	Invalidate(key uint32) Verdict

	// NextReceive removes and returns the oldest posted receive. The queue pair owns the receive until
	// the call of Received. ok is false if no receive is posted.
	NextReceive() (Receive, bool)

	// RequestDone returns a posted request with its result. Requests complete in the order of
	// posting.
	RequestDone(r *Request, c Completion)
	// Received returns a receive with its result.
	Received(r Receive, a Arrival)
	// Refused reports that the queue pair answers a request of the peer with a NAK that ends the
	// connection. Failed follows.
	Refused(nak ib.Syndrome)
	// Failed reports that the queue pair is in the error state. The queue pair has returned all
	// requests, and receives nothing more. The host flushes the receives still posted.
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
	Buf    Buffer // nil for zero bytes
	Remote Place  // for Write, Read, FetchAdd, CompareSwap
	Key    uint32 // the key that SendInvalidate invalidates

	HasImm bool // for Send and Write
	Imm    ib.ImmDt

	SwapAdd, Compare uint64 // for FetchAdd, CompareSwap

	Fence      bool // wait until all earlier Reads and atomic operations are complete
	Solicited  bool
	Unsignaled bool // used by the host: report the completion only if it failed

	To Destination // for datagrams
}

// A Destination is the address and queue pair of a datagram.
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

// A Completion is the result of a request.
type Completion struct {
	Status Status
	Value  uint64 // value of the word before an atomic operation
}

// An Arrival is the result of a receive.
type Arrival struct {
	Status    Status
	Len       int  // bytes in the receive, or bytes of the RDMA Write
	Write     bool // an RDMA Write with immediate data, which leaves the receive untouched
	HasImm    bool
	Imm       ib.ImmDt
	HasInv    bool
	Key       uint32 // the key that the peer invalidated, if HasInv
	Solicited bool
	Source    uint32 // the queue pair that sent the datagram
}

// A Status is the result of a request or receive.
type Status uint8

// The statuses.
const (
	OK                   Status = iota
	Flushed                     // not executed: the queue pair is in error
	LocalLength                 // receive: the message is longer than the buffer
	LocalProtection             // local memory does not exist any more
	BadResponse                 // the response does not fit its request
	RemoteInvalidRequest        // the responder does not support the request
	RemoteAccess                // the responder does not allow the access
	RemoteOperation             // the responder failed to execute the request
	RetryExceeded               // the responder did not respond
	RNRRetryExceeded            // the responder had no receive posted
)

var statusNames = [...]string{"ok", "flushed", "local length error", "local protection error", "bad response",
	"remote invalid request", "remote access error", "remote operation error", "retry exceeded", "RNR retry exceeded"}

// String returns the name of the status.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown status"
}
