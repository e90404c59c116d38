package samehost

import "viaduct/internal/shm"

// Alloc returns n zeroed bytes, n at least 1, at the beginning of a page, that are sent over shared
// memory with a single copy. The peer's process copies long payload from these bytes directly to
// its destination; from other memory, this process copies it to a ring first. So a send, a Write or
// the answer to a Read from such memory completes once the peer's process has copied it. Over TCP,
// and below 16 KiB, memory of Alloc behaves like any other.
//
// As soon as some memory of Alloc was sent to a process of the same user over shared memory, that
// process can read all memory of Alloc; no process can write to it. The memory is registered like
// any other. The garbage collector does not manage it: it stays until [Free]. At most 64 GiB can be
// allocated at a time, less if the limits of the process require it. On systems other than Linux
// the error is [errors.ErrUnsupported]. Alloc may be called from any goroutine.
func Alloc(n int) ([]byte, error) { return shm.Alloc(n) }

// Free releases memory that Alloc returned. b must be the whole slice, and is released once. Close
// its registrations first, and wait for all requests that use it: an access afterwards is a fault
// that ends the process. The error means that Alloc did not return b.
func Free(b []byte) error { return shm.Free(b) }
