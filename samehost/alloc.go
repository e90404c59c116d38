package samehost

import "viaduct/internal/shm"

// Alloc returns n zeroed bytes, n at least 1, at the beginning of a page, that are sent
// with one copy where the bytes of a connection go through shared memory: the process of the peer
// copies long payload from them to where it belongs, instead of this process to a ring and
// the peer's from there. So a send, a Write or the answer to a Read from such memory is
// complete when the peer's process has copied it; over TCP, and below 16 KiB, it makes no
// difference where memory comes from.
//
// Processes of the same user that this one has such connections with can read all memory of
// Alloc as soon as some of it was sent to them; none can write to it. It is registered like any
// other, and is not the garbage collector's: it stays until [Free]. At most 64 GiB can be
// given out at a time, less where the limits of the process say so; on systems other than
// Linux the error is [errors.ErrUnsupported]. Alloc may be called from any goroutine.
func Alloc(n int) ([]byte, error) { return shm.Alloc(n) }

// Free gives memory back that Alloc has returned, as a whole and once. Before that its
// registrations are closed, and what was posted with it unregistered has completed: touching it
// afterwards is a fault, which ends the process. The error tells that b is no such memory.
func Free(b []byte) error { return shm.Free(b) }
