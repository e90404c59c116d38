//go:build libvipl

package main

import (
	"fmt"
	"os"
)

// A signal handler that a program installs without SA_ONSTACK, as programs do,
// runs on the stack that its signal finds: in a call of this half that is a
// goroutine's, which is small and grows only for Go. headroom, called first by
// every function that C calls, makes it large enough for what handlers do. The C
// half starts the runtime such that stacks do not shrink, and such that threads
// of its own have all signals blocked. It costs a comparison once the stack has
// grown.
func headroom() { grow(false) }

// handlerRoom is how many bytes a signal handler of the program has at least:
// eight times what the frame of a signal takes with all registers of AVX-512.
const handlerRoom = 64 << 10

// grow has a frame of handlerRoom bytes, which its beginning makes room for; only
// use would clear them.
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
