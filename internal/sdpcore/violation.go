package sdpcore

import (
	"errors"
	"fmt"

	"viaduct/internal/wire/sdpwire"
)

// A Violation reports that the peer, which is not trusted [SDP-15-1], broke a rule of the protocol.
// The connection ends abortively. [SDP-8.2.2-6]
type Violation struct {
	Row  string      // row of the requirement matrix, or a decision: "SDP-9.2-17", "D-24"
	MID  sdpwire.MID // type of the message that broke the rule
	What string      // description of the violation
}

// Error returns the row and a description.
func (v *Violation) Error() string {
	return fmt.Sprintf("sdp: protocol violation [%s] in %v: %s", v.Row, v.MID, v.What)
}

// These are the reasons in OpAbort, OpReadDone and OpWriteDone, besides a *Violation.
var (
	ErrClosed = errors.New("sdp: connection closed") // a local call closed the connection
	// ErrReset means that the LLP was closed, or AbortConn was received.
	ErrReset = errors.New("sdp: connection reset by peer")
	// ErrCancelled means that CancelRead or CancelWrite ended the operation.
	ErrCancelled   = errors.New("sdp: operation cancelled")
	ErrDeadPeer    = errors.New("sdp: no answer to a cancel")                    // [D-81]
	ErrNoSuspend   = errors.New("sdp: suspension refused or timed out")          // [D-53] [D-55]
	ErrReadClosed  = errors.New("sdp: data arrived after reading was shut down") // [D-49]
	ErrWriteClosed = errors.New("sdp: write after close")                        // [SDP-8.2.1-2]
)

// violation returns the Violation of a rule by a message of type mid.
func violation(row string, mid sdpwire.MID, format string, args ...any) error {
	return &Violation{Row: row, MID: mid, What: fmt.Sprintf(format, args...)}
}

// errVoid is returned for a message without effect. It never leaves the package.
var errVoid = errors.New("sdp: void message")

// wireViolation returns the Violation for an error of sdpwire.Parse.
func wireViolation(mid sdpwire.MID, err error) *Violation {
	row := "SDP-8.2.2-6"
	switch {
	case errors.Is(err, sdpwire.ErrLen):
		row = "SDP-6.1.4-1"
	case errors.Is(err, sdpwire.ErrMID):
		row = "SDP-6.1.1-3"
	case errors.Is(err, sdpwire.ErrSize):
		row = "SDP-6.3.2.1-2"
	case errors.Is(err, sdpwire.ErrMode):
		row = "SDP-6.3.8.2-1"
	case errors.Is(err, sdpwire.ErrConst):
		row = "SDP-6.5.1.2-1"
	case errors.Is(err, sdpwire.ErrFlags):
		row = "SDP-6.1.2-5"
	}
	return &Violation{Row: row, MID: mid, What: err.Error()}
}
