package vitcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A ProtocolError describes a violation of the protocol by the peer. The connection is reset.
type ProtocolError struct { // [V-41]
	Reason string // one sentence, with the wrong values
	Err    error  // error of the parser, or nil
}

// Error returns Reason and Err.
func (e *ProtocolError) Error() string {
	if e.Err != nil {
		return "vitcp: peer against the protocol: " + e.Reason + ": " + e.Err.Error()
	}
	return "vitcp: peer against the protocol: " + e.Reason
}

// Unwrap returns Err.
func (e *ProtocolError) Unwrap() error { return e.Err }

func framingf(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}

// A RejectError is the peer's Connect Reject. It matches vi.ErrReject, or vi.ErrResource if the
// peer's reason is a lack of resources.
type RejectError struct { // [V-46]
	Code uint16 // the received Remote Error Code: its low byte is the reason
}

// Error names the reason.
func (e *RejectError) Error() string {
	return "vitcp: connection rejected: " + vitcpwire.RemoteError(e.Code).RejectReason()
}

// Is reports whether target is the error of package vi for Code.
func (e *RejectError) Is(target error) bool {
	if vitcpwire.RemoteError(e.Code).IS() == rejectResources {
		return target == vi.ErrResource
	}
	return target == vi.ErrReject
}

// A RemoteError is the peer's report of a message the peer could not accept. The connection is
// broken.
type RemoteError struct { // [VIT-3.1-ERR-1]
	Code   uint16 // the received Remote Error Code: its high byte is the VI Error Type
	Number uint32 // number of the message that the peer could not accept
}

// Error names the error and the message.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("vitcp: peer reports %v for message %d", vitcpwire.RemoteError(e.Code), e.Number)
}

// errPeerDisconnected is the cause of an orderly end by the peer.
var errPeerDisconnected = errors.New("vitcp: the peer disconnected")

// dialError returns the error of package vi for a failed TCP set-up. A refused connection becomes
// ErrNoMatch, because the host is up but has no listener. So does a connection reset by connect,
// because the listener has ended with the connection in its queue. [VIA 6.3]
func dialError(err error) error {
	var ne net.Error
	sys, _ := errors.AsType[*os.SyscallError](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), sys != nil && *sys == os.SyscallError{Syscall: "connect", Err: syscall.ECONNRESET}:
		return fmt.Errorf("%w: %w", vi.ErrNoMatch, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w: %w", vi.ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", vi.ErrNotReachable, err)
}
