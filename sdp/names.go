package sdp

import (
	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// Timers are the times that a connection acts on by itself; a zero field takes
// the default.
type Timers = sdpcore.Timers

// A MID is the type of an SDP message. [SDP 6.1.1]
type MID = sdpwire.MID
