package roce

import (
	"errors"
	"net"

	"viaduct/internal/rocecore"
)

// Errors of the methods. Test for them with errors.Is.
var (
	// ErrClosed also matches net.ErrClosed.
	ErrClosed       error = closedError{}
	ErrQueueFull          = errors.New("roce: queue is full")
	ErrTooLong            = errors.New("roce: message too long")
	ErrNotConnected       = errors.New("roce: queue pair is not connected")
	ErrInvalid            = errors.New("roce: invalid argument")
	ErrRegistered         = errors.New("roce: region is not, or no longer, registered")
	ErrLimit              = errors.New("roce: limit of the device reached")
)

type closedError struct{}

func (closedError) Error() string        { return "roce: queue pair or device is closed" }
func (closedError) Is(target error) bool { return target == net.ErrClosed }

// A Status is the result of a request or of a receive.
type Status uint8

// The statuses.
const (
	StatusOK               = Status(rocecore.OK)
	StatusFlushed          = Status(rocecore.Flushed)              // not executed: the queue pair is in error or closed
	StatusLength           = Status(rocecore.LocalLength)          // receive: the message was longer than the buffer
	StatusLocalAccess      = Status(rocecore.LocalProtection)      // local memory is not, or no longer, registered
	StatusBadResponse      = Status(rocecore.BadResponse)          // the response does not fit the request
	StatusInvalidRequest   = Status(rocecore.RemoteInvalidRequest) // the peer does not support the request
	StatusRemoteAccess     = Status(rocecore.RemoteAccess)         // the peer does not allow the access
	StatusRemoteOperation  = Status(rocecore.RemoteOperation)      // the peer failed to execute the request
	StatusRetryExceeded    = Status(rocecore.RetryExceeded)        // the peer did not respond
	StatusRNRRetryExceeded = Status(rocecore.RNRRetryExceeded)     // the peer had no receive posted
)

// String returns the name of the status.
func (s Status) String() string { return rocecore.Status(s).String() }

// A StatusError is the error of a request that failed.
type StatusError struct{ Status Status }

// Error implements error.
func (e StatusError) Error() string { return "roce: " + e.Status.String() }
