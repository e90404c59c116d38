package sock

import (
	"errors"
	"net"
	"runtime"

	"viaduct/samehost"
)

// SharesByDefault reports whether connections within a host go through shared memory
// where the options say nothing: in builds with the tag plaintcp, and on other systems than
// Linux, they do not.
const SharesByDefault = samehost.Auto == 0 && runtime.GOOS == "linux"

// WhyOff is the reason for TCP where that is what was wanted.
const WhyOff = "shared memory is turned off"

// Reasons for TCP that are given in several places.
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

// PathOf tells how the bytes of nc go: a connection of [Own], [Dial] or
// [OwnListener], or the Handle of its Socket.
func PathOf(nc net.Conn) samehost.Path {
	if h, ok := nc.(interface{ path() samehost.Path }); ok {
		return h.path()
	}
	return samehost.Path{Why: whyNotOwned}
}

// Shares reports whether policy lets connections go through shared memory.
func Shares(policy samehost.Policy) bool { return policy != samehost.Off }

// CheckShared returns an error if policy wants shared memory and nc, whose peer has
// begun the stream, does not have it.
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

// reasons are short words for the reasons for TCP that are known beforehand.
var reasons = map[string]string{
	WhyOff: "off", whyNotOwned: "not_owned", whyOtherHost: "other_host", whyNotAsked: "not_asked", whyNoMeeting: "not_offered",
	whyOtherUser: "other_user", whyBegun: "begun", whyNoPlatform: "unsupported",
}

// Reason is a word for why the bytes of a connection go by TCP, one of a dozen, for
// counting them; "" if they do not, "other" if the reason is an error's.
func Reason(p samehost.Path) string {
	if p.SharedMemory {
		return ""
	}
	if r, ok := reasons[p.Why]; ok {
		return r
	}
	return "other"
}
