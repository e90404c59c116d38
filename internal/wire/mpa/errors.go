package mpa

import "fmt"

// These are the layer and error type of MPA's errors in a Terminate message of RDMAP. [MPA 8]
// [REG 3.3]
const (
	TerminateLayer = 2
	TerminateType  = 0
)

// A Code is an error code of MPA, as carried by a Terminate message. [MPA 8] [MPA2 8] [MPA2-8-2]
type Code uint8

// These are the error codes. Codes 1 to 4 are defined by RFC 5044 [MPA-8-1], the others by RFC
// 6581.
const (
	CodeClosed          Code = 0x01 // TCP was closed, terminated or lost
	CodeCRC             Code = 0x02 // the received CRC does not match
	CodeMarker          Code = 0x03 // a marker and ULPDU_Length disagree
	CodeFrame           Code = 0x04 // invalid Request or Reply Frame
	CodeCatastrophic    Code = 0x05 // local catastrophic error
	CodeInsufficientIRD Code = 0x06 // the peer requests more Reads than this side can serve
	CodeNoRTR           Code = 0x07 // both sides have no kind of RTR in common
)

// String returns a short description, or the number in hex if the code is unknown.
func (c Code) String() string {
	switch c {
	case CodeClosed:
		return "TCP connection closed or lost"
	case CodeCRC:
		return "CRC error"
	case CodeMarker:
		return "marker and ULPDU length mismatch"
	case CodeFrame:
		return "invalid Request or Reply Frame"
	case CodeCatastrophic:
		return "local catastrophic error"
	case CodeInsufficientIRD:
		return "insufficient IRD resources"
	case CodeNoRTR:
		return "no matching RTR option"
	}
	return fmt.Sprintf("code 0x%02x", uint8(c))
}

// An Error is an error MPA has found. Its code is for the peer and for the layer above. [MPA-8-2]
type Error struct {
	Code   Code
	Reason string // details of the error; may be empty
	Err    error  // the cause, or nil
}

// Error implements error.
func (e *Error) Error() string {
	s := "mpa: " + e.Code.String()
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Reason == "" && t.Err == nil
}

// A CRCError reports a mismatched CRC of a received FPDU. It is wrapped in an [Error] of [CodeCRC].
type CRCError struct {
	Field    uint32 // the CRC field as received
	Computed uint32 // the expected value
	// ULPDU is the content of the damaged FPDU, or nil if the FPDU had markers or was checked by
	// Verify. It serves only to explain the failure. [I-31]
	ULPDU []byte
}

// Error implements error.
func (e *CRCError) Error() string {
	return fmt.Sprintf("received 0x%08x, computed 0x%08x", e.Field, e.Computed)
}
