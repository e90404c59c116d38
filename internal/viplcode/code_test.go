package viplcode

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"viaduct/vi"
)

// TestCodes: the codes have the values of the header of VIPL. [VIA-6.3-1]
func TestCodes(t *testing.T) {
	for i, c := range []Code{
		Success, NotDone, InvalidParameter, ErrorResource, Timeout, Reject, InvalidReliabilityLevel, InvalidMTU,
		InvalidQoS, InvalidPtag, InvalidRDMARead, DescriptorError, InvalidState, ErrorNameService,
		NoMatch, NotReachable, ErrorNotSupported,
	} {
		if int(c) != i {
			t.Errorf("code %d is %d", i, c)
		}
	}
}

// Every error has its VIPL code, bare and wrapped. [VIA-6.3-1]
func TestOf(t *testing.T) {
	for err, want := range map[error]Code{
		nil: Success, vi.ErrNotDone: NotDone, vi.ErrInvalidParameter: InvalidParameter, vi.ErrClosed: InvalidParameter,
		vi.ErrResource: ErrorResource, vi.ErrTimeout: Timeout, context.DeadlineExceeded: Timeout, vi.ErrReject: Reject,
		vi.ErrInvalidReliability: InvalidReliabilityLevel, vi.ErrInvalidMTU: InvalidMTU, vi.ErrInvalidQoS: InvalidQoS,
		vi.ErrInvalidPtag: InvalidPtag, vi.ErrInvalidRDMARead: InvalidRDMARead, vi.ErrDescriptor: DescriptorError,
		vi.ErrQueueEmpty: DescriptorError, vi.ErrInvalidState: InvalidState, vi.ErrNameService: ErrorNameService,
		vi.ErrNoMatch: NoMatch, vi.ErrNotReachable: NotReachable, vi.ErrNotSupported: ErrorNotSupported,
		vi.ErrOverrun: Success, errors.New("unheard of"): ErrorResource,
		(vi.StatusDone | vi.StatusFlushed).Err(): DescriptorError, (vi.StatusDone | vi.StatusImmediate).Err(): Success,
	} {
		if got := Of(err); got != want {
			t.Errorf("code of %v is %d, want %d", err, got, want)
		}
		if err != nil {
			if got := Of(fmt.Errorf("while testing: %w", err)); got != want {
				t.Errorf("code of %v wrapped is %d, want %d", err, got, want)
			}
		}
	}
}
