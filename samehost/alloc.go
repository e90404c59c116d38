package samehost

import "viaduct/internal/shm"

// Alloc returns n zeroed bytes at the beginning of a page; n is at least 1. Over shared memory,
// long payload in memory of Alloc is copied once: the peer's process copies the payload directly to
// the destination. From other memory, this process first copies the payload to a ring. So a send, a
// Write or the answer to a Read from memory of Alloc completes after the peer's copy. Over TCP, and
// below 16 KiB, memory of Alloc behaves like any other memory.
//
// As soon as memory of Alloc was sent over shared memory to a process of the same user, the other
// process can read all memory of Alloc; no process can write to the memory. The memory is
// registered like any other. The garbage collector does not manage the memory, so the bytes stay
// until [Free]. At most 64 GiB can be allocated at a time, less if the limits of the process
// require it. On systems other than Linux, Alloc returns [errors.ErrUnsupported]. Alloc is safe for
// concurrent use.
func Alloc(n int) ([]byte, error) { return shm.Alloc(n) }

// Free releases memory from Alloc. b must be the whole slice, and may be released once. Before the
// call, close the registrations of b and wait for all requests with b: a later access is a fault
// and ends the process. Free returns an error if Alloc did not return b.
func Free(b []byte) error { return shm.Free(b) }
