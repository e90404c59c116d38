// Package regmem manages registered memory: the bytes of this program accessible to a connection,
// the rights, and the 32-bit handles.
//
// A VI memory handle with its protection tag and an iWARP STag with its protection domain are the
// same thing under two names, so this package implements both. The package knows no protocol:
// [Registry.Access] returns an [Outcome], and each protocol converts the outcome to its own status
// or wire code.
//
// Looking up a handle takes no lock. A successful access pins the region until [Ref.Release];
// [Registry.Deregister] makes further accesses fail and returns only when the last pin is gone, so
// that nothing accesses the memory afterwards. Pins are held for the length of a copy or a
// non-blocking system call, never while waiting for a peer.
//
// All functions are safe for concurrent use.
package regmem
