// Package viplcode maps the errors of package vi to the return codes of VIPL, the C library of
// the VI Architecture.
package viplcode

import (
	"context"
	"errors"

	"viaduct/vi"
)

// A Code is a return code of VIPL. [VIA 6.3]
type Code int

// These are the values in the VIPL header.
const (
	Success Code = iota
	NotDone
	InvalidParameter
	ErrorResource
	Timeout
	Reject
	InvalidReliabilityLevel
	InvalidMTU
	InvalidQoS
	InvalidPtag
	InvalidRDMARead
	DescriptorError
	InvalidState
	ErrorNameService
	NoMatch
	NotReachable
	ErrorNotSupported

	// Success [VIA-6.3-1].
)

// Of returns the return code of an error of package vi: Success for nil and for ErrOverrun, and
// ErrorResource for an unknown error.
func Of(err error) Code {
	if err == nil {
		return Success
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return ErrorResource
}

var codes = []struct {
	err  error
	code Code
}{
	{vi.ErrOverrun, Success}, // reported asynchronously [VIA 5.3]
	{vi.ErrNotDone, NotDone},
	{vi.ErrInvalidParameter, InvalidParameter},
	{vi.ErrTimeout, Timeout},
	{context.DeadlineExceeded, Timeout},
	{vi.ErrReject, Reject},
	{vi.ErrInvalidReliability, InvalidReliabilityLevel},
	{vi.ErrInvalidMTU, InvalidMTU},
	{vi.ErrInvalidQoS, InvalidQoS},
	{vi.ErrInvalidPtag, InvalidPtag},
	{vi.ErrInvalidRDMARead, InvalidRDMARead},
	{vi.ErrDescriptor, DescriptorError},
	{vi.ErrInvalidState, InvalidState},
	{vi.ErrNameService, ErrorNameService},
	{vi.ErrNoMatch, NoMatch},
	{vi.ErrNotReachable, NotReachable},
	{vi.ErrNotSupported, ErrorNotSupported},
	{vi.ErrResource, ErrorResource},
}
