package shm

import (
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BoardSlots is how many connections a Board has room for.
const BoardSlots = 1024

const (
	boardWords = BoardSlots / 64
	boardSize  = 4096
)

// A boardSide is what one of the two processes reads. Both write it, in lines of their own as in
// a control.
type boardSide struct {
	asleep atomic.Uint32 // 1: the reader sleeps, and is to be woken
	_      [124]byte
	ready  [boardWords]atomic.Uint64 // connections with news that the reader has not seen
	held   [boardWords]atomic.Uint64 // slots that the reader's process uses
}

var _ [boardSize/2 - unsafe.Sizeof(boardSide{})]byte

// A Board is a page that two processes share for all connections between them. A producer marks
// its connection there, and wakes the reader of the page only if it sleeps: so many connections
// need one wake-up together.
//
// No mark is lost. A producer marks, then looks whether the reader sleeps. A reader that is going
// to sleep says so, then looks for marks. Nothing that is read from a Board is a position, a
// length or a pointer: a peer that changes its bits keeps its own connections from being served,
// or has this process look at them without result.
//
// All methods may be called by any goroutine. The page is unmapped when nothing refers to the
// Board any more.
type Board struct {
	mine, theirs *boardSide
}

// CreateBoard makes a Board, and a descriptor to be sent to the other process and closed.
func CreateBoard() (b *Board, fd int, err error) {
	if fd, err = memfd("viaduct-board"); err != nil {
		return nil, -1, os.NewSyscallError("memfd_create", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.Ftruncate(fd, boardSize); err != nil {
		return nil, -1, os.NewSyscallError("ftruncate", err)
	}
	if err = unix.Fallocate(fd, 0, 0, boardSize); err != nil { // not refused later, by a signal
		return nil, -1, os.NewSyscallError("fallocate", err)
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	b, err = mapBoard(fd, 0)
	return b, fd, err
}

// OpenBoard maps a Board that another process has made. It must be what [Open] requires of memory.
// The descriptor stays the caller's.
func OpenBoard(fd int) (*Board, error) {
	if err := check(fd, boardSize); err != nil {
		return nil, err
	}
	return mapBoard(fd, 1)
}

func mapBoard(fd, side int) (*Board, error) {
	mem, err := mmap(fd, boardSize)
	if err != nil {
		return nil, err
	}
	at := func(side int) *boardSide { return (*boardSide)(unsafe.Pointer(&mem[side*boardSize/2])) }
	b := &Board{mine: at(side), theirs: at(1 - side)}
	runtime.AddCleanup(b, func(mem []byte) { unix.Munmap(mem) }, mem)
	return b, nil
}

// Tell marks a connection for the peer. It reports whether the peer is to be woken.
func (b *Board) Tell(slot int) (wake bool) {
	defer runtime.KeepAlive(b)
	return b.theirs.mark(slot)
}

// Again marks a connection for this process, as if the peer had done it.
func (b *Board) Again(slot int) (wake bool) {
	defer runtime.KeepAlive(b)
	return b.mine.mark(slot)
}

func (s *boardSide) mark(slot int) (wake bool) {
	s.ready[slot/64].Or(1 << (slot % 64))
	return s.asleep.Load() != 0 && s.asleep.CompareAndSwap(1, 0)
}

// Take calls f for each connection that is marked, after it has taken the mark away, and returns
// how often it did. It ends early when f returns false.
func (b *Board) Take(f func(slot int) bool) (n int) {
	defer runtime.KeepAlive(b)
	for i := range b.mine.ready {
		for w := b.mine.ready[i].Load(); w != 0; w &= w - 1 {
			b.mine.ready[i].And(^(w & -w))
			n++
			if !f(i*64 + bits.TrailingZeros64(w)) {
				return n
			}
		}
	}
	return n
}

// Sleep announces that the caller is going to sleep. If it is false something is marked, and the
// caller is awake still.
func (b *Board) Sleep() bool {
	defer runtime.KeepAlive(b)
	b.mine.asleep.Store(1)
	for i := range b.mine.ready {
		if b.mine.ready[i].Load() != 0 {
			b.mine.asleep.Store(0)
			return false
		}
	}
	return true
}

// Awake ends Sleep.
func (b *Board) Awake() {
	defer runtime.KeepAlive(b)
	b.mine.asleep.Store(0)
}

// Hold shows the peer that this process uses a slot.
func (b *Board) Hold(slot int) {
	defer runtime.KeepAlive(b)
	b.mine.held[slot/64].Or(1 << (slot % 64))
}

// Release ends Hold.
func (b *Board) Release(slot int) {
	defer runtime.KeepAlive(b)
	b.mine.held[slot/64].And(^(uint64(1) << (slot % 64)))
}

// Free returns a slot that the peer does not use, nor this process by the bits of taken. It is -1
// if there is none.
func (b *Board) Free(taken *[boardWords]uint64) int {
	defer runtime.KeepAlive(b)
	for i, w := range taken {
		if w |= b.theirs.held[i].Load(); ^w != 0 {
			return i*64 + bits.TrailingZeros64(^w)
		}
	}
	return -1
}

// A SlotSet has a bit for each slot of a Board.
type SlotSet = [boardWords]uint64

// CheckSlot returns an error for a number that is no slot.
func CheckSlot(n int) error {
	if n < 0 || n >= BoardSlots {
		return fmt.Errorf("shm: slot %d of %d", n, BoardSlots)
	}
	return nil
}
