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

// A ProtocolError names the rule of the protocol the peer broke.
type ProtocolError struct {
	Row     string // row of docs/conformance, "SDP-9.2-17", or a decision, "D-24"
	Message string // type of the message that broke the rule
	What    string // description of the violation

	err error // underlying error, whose text Error returns
}

// Error returns the rule and the description.
func (e *ProtocolError) Error() string { return e.err.Error() }

// Unwrap returns the underlying error of the connection or the set-up.
func (e *ProtocolError) Unwrap() error { return e.err }

// violation returns a *ProtocolError for a message of type mid against a rule of the conformance
// matrix.
func violation(row string, mid sdpwire.MID, what string) error {
	return exportError(&sdpcore.Violation{Row: row, MID: mid, What: what})
}

// exportError returns a violation found by the machine as a *ProtocolError, and any other error
// unchanged.
func exportError(err error) error {
	v, ok := errors.AsType[*sdpcore.Violation](err)
	if !ok {
		return err
	}
	return &ProtocolError{Row: v.Row, Message: v.MID.String(), What: v.What, err: err}
}

// These are errors of connections. Each is wrapped in a *net.OpError.
var (
	ErrReset       = sdpcore.ErrReset      // the peer, or the network, ended the connection abortively
	ErrReadClosed  = sdpcore.ErrReadClosed // data arrived after CloseRead, so the connection was reset
	ErrDeadPeer    = sdpcore.ErrDeadPeer   // the peer has not answered a cancel in time
	ErrSuspend     = sdpcore.ErrNoSuspend  // a suspension was refused or took too long
	ErrUnsupported = errors.ErrUnsupported // the connection or the system does not support the call
	ErrNoUrgent    = errors.New("sdp: no urgent byte has come")
	// ErrNoHelloAck means that the peer speaks iWARP, and has not answered the Hello.
	ErrNoHelloAck = errors.New("sdp: no HelloAck has come")
)

// A RefusedError is the error of a dial refused by the peer.
type RefusedError struct { // [D-16]
	Reason Reason // the peer's reason, or ReasonUnknown
}

// Error implements error.
func (e *RefusedError) Error() string { return "sdp: refused by peer: " + e.Reason.String() }

// [D-16]

// A Reason is the reason for refusing a Hello. On the wire it is the first two bytes, big-endian,
// of the private data of the MPA reply.
type Reason uint16

// These are the reasons for refusing a Hello.
const (
	ReasonUnknown Reason = iota
	ReasonHello          // there is no Hello, or it is malformed
	ReasonVersion        // the major version is not supported
	ReasonAdverts        // MaxAdverts is zero
	ReasonDepth          // LocIRD or LocORD is zero
	ReasonBuffers        // too few Private Buffers, or of invalid size
	ReasonBusy           // a limit on set-ups or connections was reached
	ReasonFilter         // the listener's filter refused the connection
	ReasonToken          // the token is wrong or missing

	// ReasonHello [D-02], ReasonVersion [SDP-6.2.1.1-2], ReasonAdverts [SDP-6.2.1.3-3],
	// ReasonDepth [SDP-8.1.1-12], ReasonBuffers [D-07], ReasonBusy [D-17],
	// ReasonFilter [SDP-8.1.1-13], ReasonToken [D-50].
)

var reasonNames = [...]string{"no reason given", "malformed Hello", "major version not supported", "MaxAdverts is zero",
	"LocIRD or LocORD is zero", "Private Buffers too few or of impossible size", "too many connections", "filtered", "wrong token"}

// String describes the reason, or returns the number of an unknown reason.
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

// opError wraps err as the *net.OpError of an operation. It returns nil for nil. The machine's
// errors for a closed connection or a cancelled call become net.ErrClosed.
func (c *Conn) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sdpcore.ErrClosed) || errors.Is(err, sdpcore.ErrWriteClosed) ||
		errors.Is(err, sdpcore.ErrCancelled) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "sdp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: exportError(err)}
}
