package fcip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"viaduct/internal/fc"
)

// Port is the well-known TCP port of FCIP.
const Port = 3225

// These sizes, in bytes, are fixed by RFC 3643 and RFC 3821.
const (
	HeaderLen = 28 // encapsulation header
	delimLen  = 4  // length of the SOF word and of the EOF word
	Overhead  = HeaderLen + 2*delimLen
	MinLen    = 16 * 4  // minimum length of a frame with its encapsulation
	MaxLen    = 544 * 4 // maximum length of a frame with its encapsulation
)

// These are words of the encapsulation header.
const (
	word0    = 0x0101FEFE // protocol 1, version 1, and their complements
	flagSF   = 0x01       // special frame
	flagCh   = 0x80       // changed
	plainSet = 0x0000FFFF // word 2 of an encapsulated frame: pFlags 0
)

// Errors of the parser. ErrSync means that the position of the next frame in the stream is unknown.
var (
	ErrSync  = errors.New("fcip: synchronisation lost")
	ErrFrame = errors.New("fcip: malformed encapsulation")
)

// Append appends the encapsulated f to b. [FCFS-2.3-1]
//
//	word 0  protocol | version | complements of both
//	word 1  copy of word 0
//	word 2  pFlags | 0 | complements
//	word 3  flags (6 bits) and length in words (10) | complements
//	word 4  time stamp (two words, 0: not synchronised)
//	word 6  CRC, 0 in FCIP
//	word 7  SOF SOF and complements, then the frame with its CRC, EOF likewise
func Append(b []byte, f *fc.Frame) []byte {
	words := uint32(Overhead+f.WireLen()) / 4
	b = binary.BigEndian.AppendUint32(b, word0)
	b = binary.BigEndian.AppendUint32(b, word0)
	b = binary.BigEndian.AppendUint32(b, plainSet)
	b = binary.BigEndian.AppendUint32(b, words<<16|^words&0xFFFF)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, delim(byte(f.SOF)))
	b = f.Append(b)
	return binary.BigEndian.AppendUint32(b, delim(byte(f.EOF)))
}

func delim(c byte) uint32 { return uint32(c)<<24 | uint32(c)<<16 | uint32(^c)<<8 | uint32(^c) }

// FrameLen returns the length in bytes of the encapsulated frame at the front of b. b must hold at
// least 16 bytes. The error wraps ErrSync. [FCFS-2.3-2] [FCFS-2.3-3]
func FrameLen(b []byte) (int, error) {
	w3 := binary.BigEndian.Uint32(b[12:])
	words := w3 >> 16 & 0x3FF
	switch {
	case binary.BigEndian.Uint32(b) != word0 || binary.BigEndian.Uint32(b[4:]) != word0:
		return 0, fmt.Errorf("%w: header begins %x", ErrSync, b[:8])
	case w3>>16 != ^w3&0xFFFF || words<<2 < MinLen || words<<2 > MaxLen || w3>>26 != 0:
		return 0, fmt.Errorf("%w: length word %08x", ErrSync, w3)
	}
	return int(words) * 4, nil
}

// Parse decodes the encapsulated frame at the front of b into f, and returns the length of the
// frame. f then refers to b. io.ErrUnexpectedEOF means that b is too short. An error wrapping
// ErrSync ends the link. Any other error concerns only the parsed frame: n is set, and the next
// frame follows. Parse makes all tests of RFC 3821, 5.6.2.2, except the check of the next header.
func Parse(b []byte, f *fc.Frame) (n int, err error) {
	if len(b) < 16 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err = FrameLen(b)
	if err != nil {
		return 0, err
	}
	if len(b) < n {
		return 0, io.ErrUnexpectedEOF
	}
	b = b[:n]
	eof := b[n-4]
	if b[8]&flagSF == 0 && (binary.BigEndian.Uint32(b[n-4:]) != delim(eof) || !fc.EOF(eof).Valid()) {
		return 0, fmt.Errorf("%w: end of frame %x", ErrSync, b[n-4:])
	}
	if b[8]&flagSF != 0 && b[10]&flagSF == 0 { // [FCFS-2.4-4] [FCFS-2.4-6]
		return 0, fmt.Errorf("%w: a special frame among others", ErrSync)
	}
	if binary.BigEndian.Uint32(b[8:]) != plainSet || binary.BigEndian.Uint32(b[24:]) != 0 {
		return n, fmt.Errorf("%w: flags %x, CRC %x", ErrFrame, b[8:12], b[24:28])
	}
	sof := b[28]
	if binary.BigEndian.Uint32(b[28:]) != delim(sof) || !fc.SOF(sof).Valid() {
		return n, fmt.Errorf("%w: start of frame %x", ErrFrame, b[28:32])
	}
	f.SOF, f.EOF, f.Taker = fc.SOF(sof), fc.EOF(eof), nil
	return n, f.Parse(b[HeaderLen+delimLen : n-delimLen])
}
