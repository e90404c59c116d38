//go:build libvipl

package main

import (
	"fmt"
	"os"
)

// headroom makes the stack of the current goroutine large enough for a signal handler of the
// program. Functions called by C begin with headroom. Programs install handlers without SA_ONSTACK,
// so a handler runs on the current stack. In a call of the Go half the current stack is a
// goroutine's: small, and growing only for Go. The C half starts the runtime with stacks that do
// not shrink, and with all signals blocked in the runtime's own threads. Once the stack has grown,
// headroom costs a comparison.
func headroom() { grow(false) }

// handlerRoom is the least number of bytes for a signal handler of the program: eight times a
// signal frame with all registers of AVX-512.
const handlerRoom = 64 << 10

// grow has a frame of handlerRoom bytes. Entering grow grows the stack; the bytes are cleared only
// if use is set.
//
//go:noinline
func grow(use bool) {
	if use {
		var room [handlerRoom]byte
		keep(&room[0])
	}
}

//go:noinline
func keep(*byte) {}

// complain writes a line to the standard error.
func complain(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "libvipl: "+format+"\n", args...)
}
