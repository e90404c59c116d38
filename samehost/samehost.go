// Package samehost selects and reports whether a connection between two processes of one host
// transfers its bytes through shared memory instead of TCP. All transports use the types of
// samehost.
//
// The two processes find each other by a name in the abstract namespace of AF_UNIX sockets, shared
// by the processes of a network namespace. Containers with separate network namespaces need a
// directory mounted into both (SameHostDir of the transports). The user of both processes must own
// the directory, and no other user may write to it. As a proof, each process then passes its end of
// the TCP connection to the other process. If addresses are translated between the two processes,
// the connection uses TCP.
//
// The TCP connection is made as usual, and stays open and silent: it ends when the peer ends.
// Frames, limits and errors are the same as over TCP. Both processes must belong to one user. If
// one end cannot or does not want to use shared memory, the connection uses TCP, and [Path] has the
// reason.
//
// Over shared memory this process copies the sent bytes itself, while over TCP the kernel copies.
// So memory that is unmapped or shrinks while registered must be registered with Guarded; without
// Guarded, the access is a fault and ends the process.
package samehost

import (
	"errors"
	"slices"
	"strconv"
)

// A Policy selects shared memory or TCP.
type Policy uint8

// The policies. Auto is the zero value.
const (
	Auto    Policy = auto     // shared memory if both ends can, else TCP
	Off     Policy = 1 - auto // TCP
	Require Policy = 2        // shared memory, or the connection fails; waits up to 10 s for a busy peer
)

var names = [...]string{Auto: "auto", Off: "off", Require: "require"}

// String returns "auto", "off" or "require".
func (p Policy) String() string {
	if int(p) < len(names) {
		return names[p]
	}
	return "Policy(" + strconv.Itoa(int(p)) + ")"
}

// Parse returns the policy named by s: "auto", "off" or "require". Any other text is an error.
func Parse(s string) (Policy, error) {
	if i := slices.Index(names[:], s); i >= 0 {
		return Policy(i), nil
	}
	return Auto, errors.New("must be auto, off or require")
}

// A Path reports whether a connection uses shared memory.
type Path struct {
	SharedMemory bool
	Why          string // why the connection uses TCP; "" if SharedMemory is true
}

// String returns "shared memory", or "tcp" with the reason.
func (p Path) String() string {
	if p.SharedMemory {
		return "shared memory"
	}
	return "tcp: " + p.Why
}
