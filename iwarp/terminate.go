package iwarp

import (
	"bytes"
	"errors"
	"fmt"

	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A TerminateError reports that a stream ended with an error of RDMAP, DDP or MPA. Either the peer
// found the error and sent a Terminate message, or this side found and, if possible, reported the
// error.
type TerminateError struct { // [RDMAP-7.1-1] [RDMAP-5.4-5] [DDP-6.2.2-1] [MPA-8-2] [RDMAP-3.2-3] [RDMAP-3.2-5]
	Remote bool  // whether the peer reported the error; otherwise this end found it
	Layer  uint8 // layer that found the error: 0 for RDMAP, 1 for DDP, 2 for MPA
	Type   uint8 // error type
	Code   uint8 // error code, of that type

	SegLen int    // length in bytes of the offending segment, -1 if unknown
	DDP    []byte // DDP header of that segment, if known
	RDMAP  []byte // RDMAP header of the segment, if it was a Read Request

	Raw   []byte // the Terminate message without its DDP header, as sent or received
	Hint  string // another possible meaning of Raw, for people
	Cause error  // underlying error on this side, or nil
}

var _ error = (*TerminateError)(nil)

// Error returns who found the error, the layer, its numbers, their meaning, Hint and Cause.
func (e *TerminateError) Error() string {
	source := "found"
	if e.Remote {
		source = "reported by peer"
	}
	layer := rdmap.Layer(e.Layer)
	text, _ := rdmap.Describe(layer, e.Type, e.Code)
	s := fmt.Sprintf("iwarp: %s: %v error %d/%d/%02x, %s", source, layer, e.Layer, e.Type, e.Code, text)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause, or nil if there is none.
func (e *TerminateError) Unwrap() error { return e.Cause }

// Is reports whether target is a *TerminateError with the same layer, type, code and origin, but
// neither Cause nor Raw.
func (e *TerminateError) Is(target error) bool {
	t, ok := target.(*TerminateError)
	return ok && t.Remote == e.Remote && t.Layer == e.Layer && t.Type == e.Type && t.Code == e.Code &&
		t.Cause == nil && t.Raw == nil
}

// terminateError returns the error for a sent Terminate, or, if remote is true, a received
// Terminate. raw is the message without the DDP header.
func terminateError(t rdmap.Terminate, remote bool, raw []byte, cause error) *TerminateError {
	e := &TerminateError{Remote: remote, Layer: uint8(t.Layer), Type: t.Type, Code: t.Code, SegLen: -1, Cause: cause}
	if t.Length {
		e.SegLen = int(t.SegLen)
	}
	e.DDP, e.RDMAP, e.Raw = bytes.Clone(t.DDP), bytes.Clone(t.RDMAP), bytes.Clone(raw)
	if remote {
		e.Hint = hint(t)
	}
	return e
}

// hint returns another meaning of a code, used by known peers, or "". The hint is only for people.
// [I-40] [I-75]
func hint(t rdmap.Terminate) string {
	if s, ok := t.Swapped(); ok {
		return fmt.Sprintf("fields swapped, probably Linux siw: %v error %d/%d/%02x, %s", s.Layer,
			uint8(s.Layer), s.Type, s.Code, s.Text())
	}
	switch [3]uint8{uint8(t.Layer), t.Type, t.Code} {
	case [3]uint8{1, 2, 2}:
		return "no receive posted, or, from some peers, message longer than the receive"
	case [3]uint8{0, 2, 7}:
		return "too many reads outstanding, or misaligned atomic"
	}
	return ""
}

// lostError returns the error of a connection lost because of cause.
func lostError(cause error) *TerminateError {
	t := rdmap.TerminateMPA(uint8(mpa.CodeClosed))
	return terminateError(t, false, nil, cause)
}

// Errors of a stream. Test with errors.Is.
var (
	// ErrClosed matches net.ErrClosed.
	ErrClosed     error = closedError{}
	ErrQueueFull        = errors.New("iwarp: queue is full")
	ErrNoReads          = errors.New("iwarp: peer serves no reads")
	ErrNotEnabled       = errors.New("iwarp: extension is not enabled")
	ErrTooLong          = errors.New("iwarp: message too long")
	ErrNotMPA           = errors.New("iwarp: peer does not speak MPA")
	ErrPeerClosed       = errors.New("iwarp: peer has closed its direction")
	ErrTimeout    error = timeoutError{}
)
