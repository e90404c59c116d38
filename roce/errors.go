package roce

import (
	"errors"
	"net"

	"viaduct/internal/rocecore"
)

// Errors of the methods. Test with errors.Is.
var (
	// ErrClosed matches net.ErrClosed.
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

// A Status says how a request ended.
type Status uint8

// The statuses.
const (
	StatusOK               = Status(rocecore.OK)
	StatusFlushed          = Status(rocecore.Flushed)              // not done, because the queue pair is in error or closed
	StatusLength           = Status(rocecore.LocalLength)          // receive: the message was longer
	StatusLocalAccess      = Status(rocecore.LocalProtection)      // local memory was not, or no longer, registered
	StatusBadResponse      = Status(rocecore.BadResponse)          // a response that does not fit the request
	StatusInvalidRequest   = Status(rocecore.RemoteInvalidRequest) // the peer does not take the request
	StatusRemoteAccess     = Status(rocecore.RemoteAccess)         // the peer does not allow it
	StatusRemoteOperation  = Status(rocecore.RemoteOperation)      // the peer failed
	StatusRetryExceeded    = Status(rocecore.RetryExceeded)        // the peer is silent
	StatusRNRRetryExceeded = Status(rocecore.RNRRetryExceeded)     // the peer had no receive
)

// String returns the name of the status.
func (s Status) String() string { return rocecore.Status(s).String() }

// A StatusError is the error of a request that failed.
type StatusError struct{ Status Status }

// Error implements error.
func (e StatusError) Error() string { return "roce: " + e.Status.String() }
