//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync/atomic"
	"unsafe"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A ring is a work queue in shared memory. The program fills entries and marks the entries valid;
// this side takes valid entries in order and marks the entries free.
type ring struct {
	mem   []byte
	key   int64
	entry int    // bytes of one entry
	n     uint32 // number of entries, a power of two
	at    uint32 // the next entry to take
}

func newRing(a *arena, entries uint32, size int) (r ring, err error) {
	n := uint32(1)
	for n < entries {
		n *= 2
	}
	b, key, err := a.ring(int(n) * size)
	return ring{mem: b, key: key, entry: size, n: n}, err
}

func (r *ring) slot(i uint32) []byte {
	at := int(i%r.n) * r.entry
	return r.mem[at : at+r.entry : at+r.entry]
}

// word returns the word with the flags of an entry.
func word(entry []byte) *uint32 {
	return (*uint32)(unsafe.Pointer(&entry[abi.FlagsAt]))
}

// valid reports whether the next entry is filled.
func (r *ring) valid() bool { return atomic.LoadUint32(word(r.slot(r.at)))&abi.Valid != 0 }

// free lets the program use an entry again.
func free(entry []byte) {
	w := word(entry)
	// Only this side clears the bit, and the program writes the entry only while the bit is clear.
	atomic.StoreUint32(w, atomic.LoadUint32(w)&^abi.Valid)
}

// A sendRing is a send queue. While this side is awake, the last taken entry stays valid: the
// program rings only if the entry is free.
type sendRing struct {
	ring
	held bool // entry at-1 was taken, but is still marked valid
}

// take copies the next entry. It returns false if there is none.
func (r *sendRing) take(e *[abi.SQELen]byte) bool {
	if !r.valid() {
		return false
	}
	copy(e[:], r.slot(r.at))
	if r.held {
		free(r.slot(r.at - 1))
	}
	r.held = true
	r.at++
	return true
}

// sleep makes the program ring the doorbell at the next entry. It returns false if there is an
// entry already.
func (r *sendRing) sleep() bool {
	if r.held {
		r.held = false
		free(r.slot(r.at - 1))
	}
	return !r.valid()
}

// A recvRing is a receive queue, of one queue pair or shared. Entries are freed when they are
// taken; there is no doorbell.
type recvRing struct{ ring }

func (r *recvRing) take(e *[abi.RQELen]byte) bool {
	if !r.valid() {
		return false
	}
	copy(e[:], r.slot(r.at))
	free(r.slot(r.at))
	r.at++
	return true
}
