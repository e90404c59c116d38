//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/binary"
	"testing"

	"viaduct/internal/notify"
)

// A connect counts as a repetition of the answered connect only if made by the same thread, with
// the same arguments, and for the first time. The program must have made no other call on the
// program's end in between.
func TestPairRepeats(t *testing.T) {
	args := [6]uint64{5, 0x1000, 16}
	answered := &notify.Call{ID: 1, TID: 7, Args: args}
	for _, c := range []struct {
		what string
		call notify.Call
		on   bool // another call came in between
		want bool
	}{
		{"made again", notify.Call{ID: 2, TID: 7, Args: args}, false, true},
		{"another thread's", notify.Call{ID: 2, TID: 8, Args: args}, false, false},
		{"to another address", notify.Call{ID: 2, TID: 7, Args: [6]uint64{5, 0x2000, 16}}, false, false},
		{"behind another call", notify.Call{ID: 2, TID: 7, Args: args}, true, false},
	} {
		p := new(pair)
		ps := &pairs{m: map[uint64]*pair{9: p}}
		ps.used.Store(true)
		p.answered.Store(answered)
		if c.on {
			ps.goesOn(9)
		}
		ps.goesOn(10) // another socket's
		if got := p.repeats(&c.call); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
		if p.repeats(&c.call) {
			t.Errorf("%s: twice", c.what)
		}
	}
}

// A buffer is a program's memory for a name: first the length of the space, then the space itself.
type buffer [64]byte

func (b *buffer) ReadMem(addr uint64, p []byte) (int, error)  { return copy(p, b[addr:]), nil }
func (b *buffer) WriteMem(addr uint64, p []byte) (int, error) { return copy(b[addr:], p), nil }

// A call whose answer was lost is repeated, and then finds the whole length of the name instead of
// the length of the buffer. Memory beyond the buffer must not be written. A new call, after an
// answer, may use the passed length.
func TestShortNames(t *testing.T) {
	const room, full = 16, 28
	name := make([]byte, full)
	for i := range name {
		name[i] = byte(i + 1)
	}
	for _, c := range []struct {
		what     string
		thread   int
		answered bool
		want     int // bytes written by the second call
	}{
		{"made again", 7, false, room},
		{"of another thread", 8, false, full},
		{"after an answer", 7, true, full},
	} {
		var names shortNames
		b := new(buffer)
		binary.NativeEndian.PutUint32(b[:], room)
		for call, thread := range []int{7, c.thread, c.thread} {
			clear(b[4:])
			if e := names.store(b, thread, 4, 0, name); e != 0 {
				t.Fatal(e)
			}
			want := room
			if call > 0 {
				want = c.want
			}
			if got := binary.NativeEndian.Uint32(b[:]); got != full || b[4+want-1] == 0 || b[4+want] != 0 {
				t.Errorf("%s: call %d: length %d, memory %v, want %d bytes", c.what, call, got, b[4:], want)
			}
			if c.answered {
				names.answered(thread)
			}
		}
	}
}
