package sdp

import (
	"errors"
	"fmt"
	"net"
	"os"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// [SDP-8.2.2-6]

// A ProtocolError says which rule of the protocol the peer broke.
type ProtocolError struct {
	Row     string // of docs/conformance, "SDP-9.2-17", or a decision, "D-24"
	Message string // name of the type of message that broke it
	What    string // what was wrong

	err error // what led to it, with its text
}

// Error returns the rule and what was wrong.
func (e *ProtocolError) Error() string { return e.err.Error() }

// Unwrap returns the error of the connection that the violation caused.
func (e *ProtocolError) Unwrap() error { return e.err }

// violation returns the *ProtocolError of a message that breaks a rule of the matrix.
func violation(row string, mid sdpwire.MID, what string) error {
	return exportError(&sdpcore.Violation{Row: row, MID: mid, What: what})
}

// exportError returns a violation that the machine found as a *ProtocolError, and other errors
// as they are.
func exportError(err error) error {
	v, ok := errors.AsType[*sdpcore.Violation](err)
	if !ok {
		return err
	}
	return &ProtocolError{Row: v.Row, Message: v.MID.String(), What: v.What, err: err}
}

// Errors of connections; all of them come in a *net.OpError.
var (
	ErrReset       = sdpcore.ErrReset      // the peer, or the network, ended the connection abortively
	ErrReadClosed  = sdpcore.ErrReadClosed // data came after CloseRead, so the connection was reset
	ErrDeadPeer    = sdpcore.ErrDeadPeer   // the peer does not answer a cancel
	ErrSuspend     = sdpcore.ErrNoSuspend  // a suspension was refused or took too long
	ErrUnsupported = errors.ErrUnsupported // the connection can't do that
	ErrNoUrgent    = errors.New("sdp: no urgent byte has come")
	ErrNoHelloAck  = errors.New("sdp: no HelloAck has come") // the peer speaks iWARP and does not go on with SDP
)

// A RefusedError is the error of a dial that the peer turned down.
type RefusedError struct { // [D-16]
	Reason Reason // why, if the peer said
}

// Error implements error.
func (e *RefusedError) Error() string { return "sdp: refused by peer: " + e.Reason.String() }

// [D-16]

// A Reason is why a Hello was refused. On the wire it is two bytes in the
// private data of the MPA reply.
type Reason uint16

// The reasons.
const (
	ReasonUnknown Reason = iota
	ReasonHello          // no Hello, or one that is malformed
	ReasonVersion        // the major version is not supported
	ReasonAdverts        // MaxAdverts is zero
	ReasonDepth          // LocIRD or LocORD is zero
	ReasonBuffers        // too few Private Buffers, or of impossible size
	ReasonBusy           // a limit on set-ups or connections
	ReasonFilter         // the listener's filter
	ReasonToken          // a token that does not fit

	// ReasonHello [D-02], ReasonVersion [SDP-6.2.1.1-2], ReasonAdverts [SDP-6.2.1.3-3],
	// ReasonDepth [SDP-8.1.1-12], ReasonBuffers [D-07], ReasonBusy [D-17],
	// ReasonFilter [SDP-8.1.1-13], ReasonToken [D-50].
)

var reasonNames = [...]string{"no reason given", "malformed Hello", "major version not supported", "MaxAdverts is zero",
	"LocIRD or LocORD is zero", "Private Buffers too few or of impossible size", "too many connections", "filtered", "wrong token"}

// String describes the reason.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %#04x", uint16(r))
}

var (
	errDeadline error = os.ErrDeadlineExceeded
	_           error = (*RefusedError)(nil)
	_           error = (*ProtocolError)(nil)
)

// opError wraps err as the error of an operation, except io.EOF and nil.
func (c *Conn) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sdpcore.ErrClosed) || errors.Is(err, sdpcore.ErrWriteClosed) || errors.Is(err, sdpcore.ErrCancelled) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "sdp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: exportError(err)}
}
