package perftest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
)

// The tools fill their memory with the low bytes of the numbers of rand, which in the GNU C library
// are r[i]>>1 of
//
//	r[i] = r[i-3] + r[i-31]  (mod 2^32)
//
// The shifted-out bit may carry into the sum, so that each byte is the sum of the bytes 3 and 31
// places earlier, or 1 more. A wrong or misplaced byte breaks the rule with a chance of 254 in 256,
// for each of three sums.
const (
	lagShort = 3
	lagLong  = 31
)

// fillRandom fills b with random bytes acceptable to checkRandom.
func fillRandom(b []byte) {
	var r [lagLong]uint32
	for i := range r {
		r[i] = rand.Uint32()
	}
	for i := range b {
		k := i % lagLong
		if i >= lagLong {
			r[k] += r[(k+lagLong-lagShort)%lagLong]
		}
		b[i] = byte(r[k] >> 1)
	}
}

// checkRandom returns the index of the first byte of b impossible for the generator, or -1.
func checkRandom(b []byte) int {
	for i := lagLong; i < len(b); i++ {
		if d := b[i] - b[i-lagShort] - b[i-lagLong]; d > 1 {
			return i
		}
	}
	return -1
}

// A layout determines the offsets of messages in a buffer. Small messages use slots of whole cache
// lines in turn; large messages all use offset 0.
type layout struct {
	size  int // bytes of a message
	cycle int // bytes of all slots together
	line  int // bytes of a cache line
}

// stride returns the distance of two slots in bytes.
func (l layout) stride() int {
	return max(l.line, (l.size+l.line-1)/l.line*l.line)
}

// slots returns the number of slots, 1 for large messages.
func (l layout) slots() int {
	if l.size > l.cycle/2 {
		return 1
	}
	return l.cycle / l.stride()
}

// offset returns the offset of message i.
func (l layout) offset(i int) int { return i % l.slots() * l.stride() }

// span returns the length in bytes of a buffer for a direction.
func (l layout) span() int { return max(l.size, l.cycle) }

// An image is the part of the sender's buffer covered by the received messages.
type image struct {
	layout
	b    []byte
	seen int // number of slots seen
}

func newImage(l layout) *image { return &image{layout: l, b: make([]byte, l.span())} }

// add adds message i. Messages are added in order. If the slot of the message was seen before, the
// bytes must be the same.
func (m *image) add(i int, msg []byte) error {
	at := m.b[m.offset(i):][:m.size]
	if i < m.slots() {
		copy(at, msg)
		m.seen++
		return nil
	}
	if !bytes.Equal(at, msg) {
		k := 0
		for at[k] == msg[k] {
			k++
		}
		return fmt.Errorf("%w: message %d, byte %d of %d is %#02x, earlier it was %#02x", ErrContents, i, k, m.size, msg[k], at[k])
	}
	return nil
}

// check checks the bytes of the slots seen by the rule of checkRandom: together if the slots are
// adjacent, otherwise each slot alone.
func (m *image) check() error {
	runs, length := m.seen, m.size
	if m.stride() == m.size {
		runs, length = min(1, m.seen), m.seen*m.size
	}
	for r := range runs {
		if k := checkRandom(m.b[r*m.stride():][:length]); k >= 0 {
			return fmt.Errorf("%w: byte %d of %d of the peer's memory does not follow from those before it", ErrContents, r*m.stride()+k, m.span())
		}
	}
	return nil
}
