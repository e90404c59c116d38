package notify

import "errors"

// These are errors of calls and of listeners.
var (
	// ErrGone means that a call no longer waits: the thread got a signal or died.
	ErrGone = errors.New("notify: the call was interrupted")
	// ErrNested means that the program already has a listener, from another supervisor. The kernel
	// allows a single listener in a chain of filters.
	ErrNested = errors.New("notify: another supervisor listens to this process already")
)

// An Action is what the kernel does with a call.
type Action uint32

// These are two of the actions; Errno returns others.
const (
	Allow  Action = 0x7fff0000 // the kernel executes the call
	Notify Action = 0x7fc00000 // the listener receives the call as a Call
)

// Errno is the action to fail the call with an error number of 0 to 4095.
func Errno(n uint16) Action { return Action(0x00050000 | uint32(min(n, 4095))) }

// A Cond is a test of one argument: Low <= arg&Mask <= High. A Cond compares the lower 32 bits of
// the argument as an unsigned number. A zero Mask means all bits.
type Cond struct {
	Arg       int // number of the argument, 0 to 5
	Mask      uint32
	Low, High uint32
}

// A Rule sets the action for the calls of a number whose arguments meet all conditions. If several
// rules have the same number, the first that applies decides. If none applies, the call is allowed.
type Rule struct {
	Nr int // system call number of this processor architecture
	If []Cond
	Do Action

	// Compat means that Nr is the number of a 32-bit call. On amd64, 64-bit programs can make such
	// calls too.
	Compat bool
}
