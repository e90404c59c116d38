package testkit

import (
	"io"
	"math"
	"math/rand/v2"
)

// A Fault changes the stream of bytes sent by an end of a [Pipe]. See [Conn.Fault].
type Fault func(*stream)

// CutAfter ends the stream by an orderly close after n bytes, even in the middle of a message. The
// peer reads n bytes and then io.EOF. Writes of later bytes succeed, but the bytes are lost.
func CutAfter(n int64) Fault {
	return func(s *stream) { s.cutAt, s.cutReset = n, false; s.cutLocked() }
}

// ResetAfter resets the stream after n bytes. Both the reader and the writer of this direction get
// the reset. Unread bytes are lost.
func ResetAfter(n int64) Fault {
	return func(s *stream) { s.cutAt, s.cutReset = n, true; s.cutLocked() }
}

// StallAfter delays every byte after the first n until [Conn.Resume]. The sender can write until
// the window is full.
func StallAfter(n int64) Fault { return func(s *stream) { s.stallAt = n } }

// CorruptAt flips the bits of mask in the byte at offset n, unless the byte was sent already.
func CorruptAt(n int64, mask byte) Fault {
	return func(s *stream) {
		if s.flips == nil {
			s.flips = make(map[int64]byte)
		}
		s.flips[n] ^= mask
	}
}

// SplitReads makes every Read return a piece of random size, often a small one. The same seed and
// the same Reads give the same pieces.
func SplitReads(seed uint64) Fault {
	return func(s *stream) { s.split = rand.New(rand.NewPCG(seed, 0x5eed)) }
}

// MaxRead limits every Read to n bytes. n must be at least 1.
func MaxRead(n int) Fault { return func(s *stream) { s.maxRead = n } }

// never is an offset no stream reaches.
const never = math.MaxInt64

type faults struct {
	cutAt    int64
	cutReset bool
	stallAt  int64
	flips    map[int64]byte
	split    *rand.Rand
	maxRead  int
}

func noFaults() faults { return faults{cutAt: never, stallAt: never, maxRead: math.MaxInt} }

// pieceLocked returns the maximum length of a Read into n bytes, a random length after SplitReads.
func (s *stream) pieceLocked(n int) int {
	n = min(n, s.maxRead)
	if s.split == nil || n <= 1 {
		return n
	}
	if s.split.IntN(2) == 0 {
		return 1 + s.split.IntN(min(n, 8)) // so small that reads end inside of headers
	}
	return 1 + s.split.IntN(n)
}

// takeLocked appends p to the stream, with the bits of CorruptAt flipped and without the bytes
// after a cut.
func (s *stream) takeLocked(p []byte) {
	keep := min(int64(len(p)), max(0, s.cutAt-s.written))
	from := len(s.buf)
	s.buf = append(s.buf, p[:keep]...)
	for at, mask := range s.flips {
		if i := at - s.written; i >= 0 && i < keep {
			s.buf[from+int(i)] ^= mask
		}
	}
	s.written += int64(len(p))
	s.cutLocked()
}

// cutLocked ends or resets the stream at the offset of CutAfter or ResetAfter.
func (s *stream) cutLocked() {
	if s.written < s.cutAt || s.cutAt == never {
		return
	}
	if s.cutReset {
		s.resetLocked()
	} else if s.readErr == nil {
		s.readErr = io.EOF
	}
	s.wake.Broadcast()
}
