//go:build libvipl

package main

import (
	"sync"
	"sync/atomic"
)

// A handle names an object to a program. It consists of an index into the table of the kind, the
// kind, and a generation. The generation keeps the handle of a removed object from naming the
// object's successor. Handles are never pointers, so any value a program passes can be looked up
// safely.
type handle uintptr

const (
	kindNIC = 1 + iota // as in engine.h
	kindPtag
	kindVI
	kindCQ
	kindConn
)

const (
	indexBits = 20
	kindBits  = 4
	genBits   = 32

	chunkBits = 8
	chunkSize = 1 << chunkBits
	chunks    = 1 << (indexBits - chunkBits)
)

// A table has the objects of a kind. Looking up a handle takes no lock.
type table[T any] struct {
	kind handle

	slots [chunks]atomic.Pointer[[chunkSize]atomic.Pointer[slot[T]]]

	mu   sync.Mutex
	free []int  // guarded by mu; indices of removed objects
	used int    // guarded by mu; number of indices that were ever used
	gen  uint32 // guarded by mu; generation of the latest handle
}

type slot[T any] struct {
	h handle
	v *T
}

// add stores v and returns a handle, or 0 if the table is full.
func (t *table[T]) add(v *T) handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i int
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else if t.used < 1<<indexBits {
		i = t.used
		t.used++
	} else {
		return 0
	}
	t.gen++
	c := t.slots[i>>chunkBits].Load()
	if c == nil {
		c = new([chunkSize]atomic.Pointer[slot[T]])
		t.slots[i>>chunkBits].Store(c)
	}
	h := handle(i) | t.kind<<indexBits | handle(t.gen)<<(indexBits+kindBits)
	c[i%chunkSize].Store(&slot[T]{h, v})
	return h
}

// get returns the object of a handle. It returns nil if the handle is not valid.
func (t *table[T]) get(h handle) *T {
	if p := t.at(h); p != nil {
		if s := p.Load(); s != nil && s.h == h {
			return s.v
		}
	}
	return nil
}

func (t *table[T]) at(h handle) *atomic.Pointer[slot[T]] {
	if h>>indexBits&(1<<kindBits-1) != t.kind || h>>(indexBits+kindBits+genBits) != 0 {
		return nil
	}
	i := h & (1<<indexBits - 1)
	c := t.slots[i>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return &c[i%chunkSize]
}

// remove invalidates a handle and reports whether the handle was valid. If several goroutines
// remove a handle at the same time, only one gets true.
func (t *table[T]) remove(h handle) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.at(h)
	if p == nil {
		return false
	}
	if s := p.Load(); s == nil || s.h != h {
		return false
	}
	p.Store(nil)
	t.free = append(t.free, int(h&(1<<indexBits-1)))
	return true
}

// These are the tables of the process. They are package variables, the only package variables of
// the module, because a C program passes nothing but a handle.
var (
	nics  = table[nic]{kind: kindNIC}
	ptags = table[ptag]{kind: kindPtag}
	vis   = table[endpoint]{kind: kindVI}
	cqs   = table[completions]{kind: kindCQ}
	conns = table[connection]{kind: kindConn}
)
