package notify

import "errors"

// Errors of calls and listeners.
var (
	// ErrGone means that a call no longer waits: its thread got a signal or died.
	ErrGone = errors.New("notify: the call was interrupted")
	// ErrNested means that the program would be the second with a listener: the kernel allows one
	// in a chain of filters.
	ErrNested = errors.New("notify: another supervisor listens to this process already")
)

// An Action is what the kernel does with a call.
type Action uint32

// The actions; Errno returns more.
const (
	Allow  Action = 0x7fff0000 // the call is native
	Notify Action = 0x7fc00000 // the call becomes a Call
)

// Errno is the action that fails the call with an error number of 0 to 4095.
func Errno(n uint16) Action { return Action(0x00050000 | uint32(min(n, 4095))) }

// A Cond is a test of one argument: Low <= arg&Mask <= High, on the lower 32 bits of the argument,
// without sign. A zero Mask means all bits.
type Cond struct {
	Arg       int // 0 to 5
	Mask      uint32
	Low, High uint32
}

// A Rule sets the action for calls of one number for which all conditions hold. Of the rules of one
// number the first that applies decides. If none holds, the call is allowed.
type Rule struct {
	Nr int // the number of the architecture this is built for
	If []Cond
	Do Action

	// Compat means that Nr is a number of 32-bit calls instead. On amd64, 64-bit programs can make
	// these too.
	Compat bool
}
