package vitcp

import (
	"errors"
	"slices"
	"strconv"

	"viaduct/internal/sock"
)

// SameHost says whether the bytes of a connection within one host go through shared
// memory instead of TCP. The TCP connection is made as ever, and stays open and
// silent; messages, limits and errors are the same. Both processes have to be of one
// user.
//
// Over shared memory this process itself copies what is sent, where the kernel does so
// over TCP: memory that is unmapped or shrinks while it is registered has to be
// registered with MayFault, or the process ends by a fault.
type SameHost uint8

const (
	SameHostOff     SameHost = SameHost(sock.SameHostOff)     // TCP
	SameHostAuto    SameHost = SameHost(sock.SameHostAuto)    // shared memory if both ends can
	SameHostRequire SameHost = SameHost(sock.SameHostRequire) // for dialers: shared memory, or there is no connection
)

var sameHostNames = [...]string{"off", "auto", "require"}

func (s SameHost) String() string {
	if int(s) < len(sameHostNames) {
		return sameHostNames[s]
	}
	return "SameHost(" + strconv.Itoa(int(s)) + ")"
}

// ParseSameHost is the inverse of String, for "off", "auto" and "require".
func ParseSameHost(s string) (SameHost, error) {
	if i := slices.Index(sameHostNames[:], s); i >= 0 {
		return SameHost(i), nil
	}
	return 0, errors.New("must be off, auto or require")
}
