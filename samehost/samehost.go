// Package samehost has the words by which the transports say whether the bytes of a
// connection between two processes of one host go through shared memory instead of
// TCP: what is wanted, and what came of it.
//
// They find each other by a name in the abstract namespace of AF_UNIX sockets, which the
// processes of one network namespace share. Containers that have network namespaces of their
// own are given a directory that is mounted into both (SameHostDir of the transports): its
// owner is the user of both, and no other user may write to it. There each side passes the
// other its end of the TCP connection, as a proof. Where addresses are translated on the
// way, it is TCP.
//
// The TCP connection is made as ever, and stays open and silent: its end is the end of
// the peer. Frames, limits and errors are the same. Both processes have to be of one
// user. If one end cannot or does not want to, the bytes go by TCP, and the [Path]
// tells why.
//
// Over shared memory this process itself copies what is sent, where the kernel does so
// over TCP: registered memory that is unmapped, or that shrinks while it is
// registered, has to be registered with Guarded, or the process ends by a fault.
package samehost

import (
	"errors"
	"slices"
	"strconv"
)

// A Policy says what is wanted.
type Policy uint8

// Auto is the zero value.
const (
	Auto    Policy = auto     // shared memory if both ends can, else TCP
	Off     Policy = 1 - auto // TCP
	Require Policy = 2        // shared memory, or there is no connection; a busy peer is waited for up to 10 s
)

var names = [...]string{Auto: "auto", Off: "off", Require: "require"}

// String returns "auto", "off" or "require".
func (p Policy) String() string {
	if int(p) < len(names) {
		return names[p]
	}
	return "Policy(" + strconv.Itoa(int(p)) + ")"
}

// Parse is the inverse of String.
func Parse(s string) (Policy, error) {
	if i := slices.Index(names[:], s); i >= 0 {
		return Policy(i), nil
	}
	return Auto, errors.New("must be auto, off or require")
}

// A Path says how the bytes of a connection go.
type Path struct {
	SharedMemory bool
	Why          string // why they go by TCP; "" if they do not
}

// String returns "shared memory", or "tcp" with the reason.
func (p Path) String() string {
	if p.SharedMemory {
		return "shared memory"
	}
	return "tcp: " + p.Why
}
