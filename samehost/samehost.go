// Package samehost has the words by which the transports say whether the bytes of a
// connection between two processes of one host go through shared memory instead of
// TCP: what is wanted, and what came of it.
//
// The TCP connection is made as ever, and stays open and silent: its end is the end of
// the peer. Frames, limits and errors are the same. Both processes have to be of one
// user. If one end cannot or does not want to, the bytes go by TCP, and the [Path]
// tells why.
//
// Over shared memory this process itself copies what is sent, where the kernel does so
// over TCP: registered memory that is unmapped, or that shrinks while it is
// registered, has to be registered with MayFault, or the process ends by a fault.
package samehost

import (
	"errors"
	"slices"
	"strconv"
)

// A Policy says what is wanted.
type Policy uint8

const (
	Off     Policy = iota // TCP
	Auto                  // shared memory if both ends can
	Require               // shared memory, or there is no connection
)

var names = [...]string{"off", "auto", "require"}

// String returns "off", "auto" or "require".
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
	return Off, errors.New("must be off, auto or require")
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
