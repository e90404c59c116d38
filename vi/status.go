package vi

import (
	"fmt"
	"strings"
)

// [VIA 3.2]

// A Control holds the operation and options of a descriptor. The bits are VIPL's.
type Control uint16

const (
	OpSendReceive Control = 0x0000 // Send on the send queue, Receive on the receive queue
	OpRDMAWrite   Control = 0x0001 // on the send queue
	OpRDMARead    Control = 0x0002 // on the send queue
	opReserved    Control = 0x0003
	OpMask        Control = 0x0003 // mask of the operation

	Immediate  Control = 0x0004 // the immediate data is valid (Send, RDMA Write)
	QueueFence Control = 0x0008 // the descriptor waits for all RDMA Reads posted before it

	controlReserved Control = 0xfff0

	// OpSendReceive [VIA-3.2-1].
)

// Op returns the operation without flags.
func (c Control) Op() Control { return c & OpMask }

// String returns the names of the operation and the flags.
func (c Control) String() string {
	s := [...]string{"send/receive", "rdma-write", "rdma-read", "reserved"}[c.Op()]
	if c&Immediate != 0 {
		s += "|immediate"
	}
	if c&QueueFence != 0 {
		s += "|fence"
	}
	if r := c & controlReserved; r != 0 {
		s += fmt.Sprintf("|%#x", uint16(r))
	}
	return s
}

// [VIA 3.3]

// A Status is the result of a descriptor. The bits are VIPL's.
type Status uint32

const (
	StatusDone             Status = 0x00000001 // completed, successfully or not
	StatusFormatError      Status = 0x00000002 // malformed descriptor
	StatusProtectionError  Status = 0x00000004 // the check of local memory failed
	StatusLengthError      Status = 0x00000008 // a length rule was violated
	StatusPartialError     Status = 0x00000010 // the message arrived incompletely
	StatusFlushed          Status = 0x00000020 // the descriptor was not executed: not connected, or connection broken
	StatusTransportError   Status = 0x00000040 // the transport failed
	StatusRDMAProtection   Status = 0x00000080 // the check of the peer's memory failed for an RDMA
	StatusRemoteDescriptor Status = 0x00000100 // the receive descriptor at the remote end was in error
	StatusErrorMask        Status = 0x000001fe // mask of all errors

	StatusOpSend            Status = 0x00000000
	StatusOpReceive         Status = 0x00010000
	StatusOpRDMAWrite       Status = 0x00020000
	StatusOpRemoteRDMAWrite Status = 0x00030000 // the peer's RDMA Write consumed a receive
	StatusOpRDMARead        Status = 0x00040000
	StatusOpMask            Status = 0x00070000 // mask of the operation

	StatusImmediate Status = 0x00080000 // the immediate data of this receive is valid

	// StatusDone [VIA-3.3-1].
)

// Failed reports whether an error bit is set.
func (s Status) Failed() bool { return s&StatusErrorMask != 0 }

// Err returns nil for a success and a *StatusError otherwise.
func (s Status) Err() error {
	if !s.Failed() {
		return nil
	}
	return &StatusError{s}
}

var statusNames = [...]struct {
	bit  Status
	name string
}{
	{StatusFormatError, "format error"},
	{StatusProtectionError, "protection error"},
	{StatusLengthError, "length error"},
	{StatusPartialError, "partial packet"},
	{StatusFlushed, "flushed"},
	{StatusTransportError, "transport error"},
	{StatusRDMAProtection, "remote protection error"},
	{StatusRemoteDescriptor, "remote descriptor error"},
}

// String returns the names of the operation and of the error bits.
func (s Status) String() string {
	op := fmt.Sprintf("op %#x", uint32(s&StatusOpMask))
	switch s & StatusOpMask {
	case StatusOpSend:
		op = "send"
	case StatusOpReceive:
		op = "receive"
	case StatusOpRDMAWrite:
		op = "rdma-write"
	case StatusOpRemoteRDMAWrite:
		op = "remote-rdma-write"
	case StatusOpRDMARead:
		op = "rdma-read"
	}
	if s&StatusDone == 0 {
		return op + ": pending"
	}
	var errs []string
	for _, n := range statusNames {
		if s&n.bit != 0 {
			errs = append(errs, n.name)
		}
	}
	if errs == nil {
		return op + ": done"
	}
	return op + ": " + strings.Join(errs, ", ")
}

// A StatusError is a descriptor's status as an error. It matches
// ErrDescriptor.
type StatusError struct {
	Status Status // with at least one error bit
}

// Error returns the status as text.
func (e *StatusError) Error() string { return "vi: " + e.Status.String() }

// Is reports whether target is ErrDescriptor.
func (e *StatusError) Is(target error) bool { return target == ErrDescriptor }
