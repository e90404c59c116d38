// Package regmem keeps registered memory: which bytes of this program a
// connection may touch, with which rights, and under which 32-bit handle.
//
// A VI memory handle with its protection tag and an iWARP STag with its
// protection domain are the same thing under two names, and both live here.
// The package knows no protocol: [Registry.Access] answers with an [Outcome],
// and each protocol turns that into its own status or wire code.
//
// Looking a handle up takes no lock. A successful access pins the region
// until [Ref.Release]; [Registry.Deregister] makes further accesses fail and
// returns only when the last pin is gone, so that after it nothing touches the
// memory. Pins are held for the length of a copy or a system call that does
// not block, never while waiting for a peer.
//
// All functions are safe for concurrent use.
package regmem
