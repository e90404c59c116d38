package sock

import (
	"errors"
	"net"
	"runtime"

	"viaduct/samehost"
)

// SharesByDefault reports whether connections within a host go through shared memory if the options
// do not say. They do on Linux, except in builds with the tag plaintcp.
const SharesByDefault = samehost.Auto == 0 && runtime.GOOS == "linux"

// WhyOff is the reason for TCP if the options turn shared memory off.
const WhyOff = "shared memory is turned off"

// Reasons why bytes go through TCP; see PathOf.
const (
	whyNotOwned    = "the connection is wrapped, by a capture or TLS for instance"
	whyOtherHost   = "the peer is not known to be on this host"
	whyNotAsked    = "the peer did not ask for shared memory"
	whyNoMeeting   = "the listener does not offer shared memory"
	whyNotAccepted = "the listener has not accepted the connection"
	whyOtherUser   = "the peer is another user's"
	whyBegun       = "the stream has begun already"
	whyNoPlatform  = "shared memory is not supported on this system"
)

// PathOf reports whether the bytes of nc go through shared memory, and otherwise why they go
// through TCP. nc is a connection of [Own], [Dial] or [OwnListener], or the Handle of a Socket. For
// any other connection the reason says that the connection is wrapped.
func PathOf(nc net.Conn) samehost.Path {
	if h, ok := nc.(interface{ path() samehost.Path }); ok {
		return h.path()
	}
	return samehost.Path{Why: whyNotOwned}
}

// Shares reports whether policy permits shared memory.
func Shares(policy samehost.Policy) bool { return policy != samehost.Off }

// CheckShared returns an error if policy requires shared memory but nc does not use it. Call
// CheckShared only after the peer's first bytes: until then the peer may still request shared
// memory.
func CheckShared(nc net.Conn, policy samehost.Policy) error {
	if policy != samehost.Require {
		return nil
	}
	p := PathOf(nc)
	if p.SharedMemory {
		return nil
	}
	return &net.OpError{Op: "accept", Net: "shm", Source: nc.LocalAddr(), Addr: nc.RemoteAddr(), Err: errors.New(p.Why)}
}

// reasons maps the fixed reasons for TCP to short words.
var reasons = map[string]string{
	WhyOff: "off", whyNotOwned: "not_owned", whyOtherHost: "other_host", whyNotAsked: "not_asked",
	whyNoMeeting: "not_offered",
	whyOtherUser: "other_user", whyBegun: "begun", whyNoPlatform: "unsupported",
}

// Reason returns one of a dozen words for the reason why p is TCP, for statistics. It returns "" if
// p is shared memory, and "other" if the reason is the text of an error.
func Reason(p samehost.Path) string {
	if p.SharedMemory {
		return ""
	}
	if r, ok := reasons[p.Why]; ok {
		return r
	}
	return "other"
}
