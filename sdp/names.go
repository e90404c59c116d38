package sdp

import (
	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// Timers are the times that a connection acts on by itself; a zero field takes
// the default.
type Timers = sdpcore.Timers

// [SDP 6.1.1]

// A MID is the type of an SDP message.
type MID = sdpwire.MID
