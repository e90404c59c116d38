package shm

import (
	"bytes"
	"sync/atomic"
	"unsafe"
)

// A process asks by memory that is kept: it writes there what it wants, and both tell each
// other in one word how that goes on. So neither makes a system call, or wakes the other,
// unless one sleeps.
//
//	none -> asked -> granted -> committed
//
// The one that asks may have the bell rung with the answer (awaited), ask no more before
// there is one (withdrawn), or leave in place of committing. The other may refuse.
const (
	asked = 1 + iota
	awaited
	withdrawn
	granted
	refused
	committed
	left
)

// An ask is what is asked for. It is behind the first control.
type ask struct {
	state atomic.Uint32
	_     [60]byte
	what  [MaxAsk]byte
}

// MaxAsk is the length of what can be asked for.
const MaxAsk = 64

const askAt = controlSize / 2

var _ [askAt - unsafe.Sizeof(control{})]byte

func (m *Memory) ask() *ask { return (*ask)(unsafe.Pointer(&m.b[askAt])) }

// Ask asks for something, in MaxAsk bytes at most. The memory is that of [Reuse].
func (m *Memory) Ask(what []byte) {
	a := m.ask()
	copy(a.what[:], what)
	a.state.Store(asked)
}

// Answered reports whether there is an answer, and whether it is a grant.
func (m *Memory) Answered() (yes, answered bool) {
	switch m.ask().state.Load() {
	case asked, awaited:
		return false, false
	case granted:
		return true, true
	}
	return false, true
}

// Await has the other process tell of the answer by the bell. It is false if there is one.
func (m *Memory) Await() bool { return m.ask().state.CompareAndSwap(asked, awaited) }

// Withdraw ends that something is asked for. It is false if there is an answer.
func (m *Memory) Withdraw() bool {
	a := m.ask()
	return a.state.CompareAndSwap(asked, withdrawn) || a.state.CompareAndSwap(awaited, withdrawn)
}

// withdrawn reports whether the process that has made the memory has given it back since.
func (m *Memory) withdrawn() bool { return m.ask().state.Load() == withdrawn }

// Commit takes what was granted, and Leave does not.
func (m *Memory) Commit() { m.ask().state.Store(committed) }
func (m *Memory) Leave()  { m.ask().state.Store(left) }

// Asks reports whether Asked may return something.
func Asks() bool { return kept.told.Load() > 0 }

// Asked returns memory by which a process asks for something, nil if there is none. by is
// that of [Keeper].
func Asked(by any, what []byte) *Memory {
	if !Asks() {
		return nil
	}
	kept.Lock()
	defer kept.Unlock()
	for i := len(kept.list) - 1; i >= 0; i-- {
		m := kept.list[i].m
		if m.keeper.By != by {
			continue
		}
		a := m.ask()
		if s := a.state.Load(); (s == asked || s == awaited) && bytes.Equal(a.what[:len(what)], what) {
			removeKeptLocked(i)
			return m.anew()
		}
	}
	return nil
}

// Grant gives what is asked for, or refuses it. ok is false if it was withdrawn, or answered.
// wake tells that the bell is to be rung.
func (m *Memory) Grant(yes bool) (ok, wake bool) {
	to := uint32(granted)
	if !yes {
		to = refused
	}
	a := m.ask()
	if a.state.CompareAndSwap(asked, to) {
		return true, false
	}
	ok = a.state.CompareAndSwap(awaited, to)
	return ok, ok
}

// Committed reports whether the other process has committed to what was granted, and whether
// it has decided.
func (m *Memory) Committed() (yes, decided bool) {
	switch m.ask().state.Load() {
	case granted:
		return false, false
	case committed:
		return true, true
	}
	return false, true
}
