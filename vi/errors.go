package vi

import (
	"context"
	"errors"
	"net"
	"os"
)

// Each sentinel error stands for a return code of VIPL. Returned errors wrap a sentinel error with
// details.
var ( // [VIA 6.3]
	ErrNotDone                  = errors.New("vi: not done")
	ErrInvalidParameter         = errors.New("vi: invalid parameter")
	ErrResource                 = errors.New("vi: insufficient or still used resource")
	ErrTimeout            error = &timeoutError{}
	ErrReject                   = errors.New("vi: connection rejected by the remote consumer")
	ErrInvalidReliability       = errors.New("vi: reliability level not supported or not that of the remote VI")
	ErrInvalidMTU               = errors.New("vi: maximum transfer size not supported")
	ErrInvalidQoS               = errors.New("vi: quality of service not supported")
	ErrInvalidPtag              = errors.New("vi: invalid protection tag")
	ErrInvalidRDMARead          = errors.New("vi: RDMA Read not supported")
	ErrDescriptor               = errors.New("vi: descriptor completed in error")
	ErrInvalidState             = errors.New("vi: VI is in the wrong state")
	ErrNameService              = errors.New("vi: name not found")
	ErrNoMatch                  = errors.New("vi: the remote host does not listen with this discriminator")
	ErrNotReachable             = errors.New("vi: host not reachable")
	ErrNotSupported             = errors.New("vi: not supported")

	// ErrQueueEmpty is returned for an empty work queue. It matches VIPL's DESCRIPTOR_ERROR with a
	// nil descriptor.
	ErrQueueEmpty error = &emptyError{}

	// ErrOverrun is returned for a post to a full work queue.
	ErrOverrun = errors.New("vi: more descriptors posted than the work queue holds")

	// ErrOverrun [VIA 5.2].
)

// [VIA-8.3-1]

// ErrClosed reports a closed NIC, VI or completion queue. It matches net.ErrClosed. The VIPL return
// code is INVALID_PARAMETER, as for any stale handle.
var ErrClosed = closedError{}

type closedError struct{}

func (closedError) Error() string { return "vi: object is closed" }
func (closedError) Is(target error) bool {
	return target == net.ErrClosed || target == ErrInvalidParameter
}

type emptyError struct{}

func (*emptyError) Error() string        { return "vi: work queue is empty" }
func (*emptyError) Is(target error) bool { return target == ErrDescriptor }

type timeoutError struct{}

var _ net.Error = (*timeoutError)(nil)

func (*timeoutError) Error() string   { return "vi: timeout" }
func (*timeoutError) Timeout() bool   { return true }
func (*timeoutError) Temporary() bool { return true }
func (*timeoutError) Is(target error) bool {
	return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
}
