package rxe

import (
	"errors"
	"sync"
)

// ErrGone reports that the program of a region has ended. The memory no longer exists, though queue
// pairs of the program may remain for a short time.
var ErrGone = errors.New("rxe: the program that registered the memory has ended")

// A Memory is the registered memory of a protection domain. Two values of the same domain are equal
// (==).
type Memory interface {
	// Find returns the region with the given key, held until Release. It returns nil if the domain
	// has no region with the key, if the n bytes at addr are not all in the region, or if a right
	// of need (abi.AccessLocalWrite and so on) is missing.
	Find(key uint32, addr, n uint64, need uint32) Region
}

// A Region is a registered piece of a program's memory. addr is the address used by the program and
// the program's peers.
type Region interface {
	ReadAt(p []byte, addr uint64) error
	WriteAt(p []byte, addr uint64) error
	// Place returns the process whose memory the region is, and the address in the process of the
	// byte at addr. The process is nil if the memory can be copied only with ReadAt and WriteAt.
	Place(addr uint64) (Process, uint64)
	// Hold keeps the region registered until Release. It returns false if the region is closed.
	Hold() bool
	Release()
	// Bound adds n to the number of windows into the region. The program cannot deregister the
	// region while there are any.
	Bound(n int)
}

// A piece is a part of a held region.
type piece struct {
	region Region
	addr   uint64
	n      int
}

// pieces holds the memory of a single side of a copy.
type pieces struct {
	list []piece
	size int // bytes of all pieces
}

// add adds a piece of a region held by the caller. pieces takes over the hold.
func (ps *pieces) add(r Region, addr uint64, n int) {
	ps.list = append(ps.list, piece{r, addr, n})
	ps.size += n
}

// addAll adds the pieces the elements name. It returns false if a piece is not accessible; the
// pieces before stay held.
func (ps *pieces) addAll(m Memory, list []element, need uint32) bool {
	for i := range list {
		e := &list[i]
		if e.length == 0 {
			continue
		}
		r := m.Find(e.key, e.addr, uint64(e.length), need)
		if r == nil {
			return false
		}
		ps.add(r, e.addr, int(e.length))
	}
	return true
}

func (ps *pieces) release() {
	for i := range ps.list {
		ps.list[i].region.Release()
		ps.list[i].region = nil
	}
	ps.list, ps.size = ps.list[:0], 0
}

// A copyError reports the side where a copy failed.
type copyError struct {
	reading bool
	gone    bool // the program on that side has ended
}

// chunkLen is the number of bytes copied at a time, small enough for the processor's cache.
const chunkLen = 128 << 10

var chunks = sync.Pool{New: func() any { return new([chunkLen]byte) }}

// move copies all bytes of from to the beginning of to. After an error, a part may have been
// copied. It returns nil on success.
func move(from, to *pieces) *copyError {
	if from.size == 0 {
		return nil
	}
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	r, w := cursor{list: from.list}, cursor{list: to.list}
	for left := from.size; left > 0; {
		b := chunk[:min(left, chunkLen)]
		if err := r.each(b, Region.ReadAt); err != nil {
			return &copyError{true, errors.Is(err, ErrGone)}
		}
		if err := w.each(b, Region.WriteAt); err != nil {
			return &copyError{false, errors.Is(err, ErrGone)}
		}
		left -= len(b)
	}
	return nil
}

// scatter copies b to the beginning of to. It returns nil on success.
func scatter(b []byte, to *pieces) *copyError {
	w := cursor{list: to.list}
	if err := w.each(b, Region.WriteAt); err != nil {
		return &copyError{false, errors.Is(err, ErrGone)}
	}
	return nil
}

// gather fills b with the beginning of from. It returns nil on success.
func gather(b []byte, from *pieces) *copyError {
	r := cursor{list: from.list}
	if err := r.each(b, Region.ReadAt); err != nil {
		return &copyError{true, errors.Is(err, ErrGone)}
	}
	return nil
}

// A cursor is a position in a list of pieces.
type cursor struct {
	list []piece
	done int // bytes of the first piece before the position
}

var errShort = errors.New("rxe: the pieces are shorter than what is copied")

// each calls do for every piece that overlaps the next len(b) bytes, and moves the cursor. The
// error is errShort if the pieces have fewer bytes.
func (c *cursor) each(b []byte, do func(r Region, p []byte, addr uint64) error) error {
	for len(b) > 0 {
		if len(c.list) == 0 {
			return errShort
		}
		p := &c.list[0]
		n := min(p.n-c.done, len(b))
		if err := do(p.region, b[:n], p.addr+uint64(c.done)); err != nil {
			return err
		}
		b = b[n:]
		if c.done += n; c.done == p.n {
			c.list, c.done = c.list[1:], 0
		}
	}
	return nil
}
