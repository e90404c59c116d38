package regmem

import (
	"errors"
	"runtime/debug"
)

// ErrFault tells that registered memory could not be touched: the file behind
// a mapping has shrunk.
var ErrFault = errors.New("regmem: memory fault in a guarded region")

// Copy copies len(src) bytes to dst, which must be at least as long. If
// guarded is set, a fault ends the copy with ErrFault instead of ending the
// program; some bytes may have been copied then.
func Copy(dst, src []byte, guarded bool) error {
	if !guarded {
		copy(dst[:len(src)], src)
		return nil
	}
	return Guard(func() { copy(dst[:len(src)], src) })
}

// Guard runs f, which touches guarded memory, and turns a fault into
// ErrFault. Other panics pass through.
func Guard(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if e := recover(); e != nil {
			// A fault's panic value has the faulting address.
			if _, ok := e.(interface{ Addr() uintptr }); !ok {
				panic(e)
			}
			err = ErrFault
		}
	}()
	f()
	return nil
}
