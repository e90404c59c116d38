package sock

import (
	"errors"
	"net"
)

// SameHost says whether the bytes of a connection within one host may go through
// shared memory.
type SameHost uint8

const (
	SameHostOff     SameHost = iota // never
	SameHostAuto                    // if both ends can
	SameHostRequire                 // or there is no connection
)

// policy is what p comes to in this build.
func (p SameHost) policy() SameHost {
	if AssumeRings && p == SameHostOff {
		return SameHostAuto
	}
	return p
}

// A path is how the bytes of a connection go.
type path struct {
	shared bool
	why    string // if they do not go through shared memory: the reason
}

// Reasons for TCP that are given in several places.
const (
	whyNotOwned   = "the TCP connection is not the stream's alone"
	whyOff        = "shared memory is turned off"
	whyOtherHost  = "the peer is not known to be on this host"
	whyNotAsked   = "the peer did not ask for shared memory"
	whyNoMeeting  = "the listener does not offer shared memory"
	whyOtherUser  = "the peer is another user's"
	whyBegun      = "the stream has begun already"
	whyNoPlatform = "shared memory is not supported on this system"
)

// PathOf reports whether the bytes of nc, a connection of [Own], [Dial] or
// [OwnListener] or the Handle of its Socket, go through shared memory, and why
// not.
func PathOf(nc net.Conn) (shared bool, why string) {
	if h, ok := nc.(interface{ path() path }); ok {
		p := h.path()
		return p.shared, p.why
	}
	return false, whyNotOwned
}

// CheckShared returns an error if policy wants shared memory and nc, whose peer has
// begun the stream, does not have it.
func CheckShared(nc net.Conn, policy SameHost) error {
	if policy != SameHostRequire {
		return nil
	}
	shared, why := PathOf(nc)
	if shared {
		return nil
	}
	return &net.OpError{Op: "accept", Net: "shm", Source: nc.LocalAddr(), Addr: nc.RemoteAddr(), Err: errors.New(why)}
}
