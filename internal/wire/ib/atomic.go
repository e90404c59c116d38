package ib

import (
	"encoding/binary"
	"io"
)

// These are the lengths in bytes of the headers of atomic operations. [ROCE-OP-6] [ROCE-OP-7]
const (
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
)

// An AtomicETH is the header of an atomic operation on a word of 8 bytes. [ROCE-OP-6]
type AtomicETH struct {
	VA      uint64 // a multiple of 8
	RKey    uint32
	SwapAdd uint64 // value to store or to add
	Compare uint64 // for Compare and Swap
}

// Append appends the AtomicETHLen bytes of h to b.
func (h AtomicETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	b = binary.BigEndian.AppendUint64(b, h.SwapAdd)
	return binary.BigEndian.AppendUint64(b, h.Compare)
}

// ParseAtomicETH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short.
func ParseAtomicETH(b []byte) (h AtomicETH, n int, err error) {
	if len(b) < AtomicETHLen {
		return AtomicETH{}, 0, io.ErrUnexpectedEOF
	}
	return AtomicETH{
		VA:      binary.BigEndian.Uint64(b),
		RKey:    binary.BigEndian.Uint32(b[8:]),
		SwapAdd: binary.BigEndian.Uint64(b[12:]),
		Compare: binary.BigEndian.Uint64(b[20:]),
	}, AtomicETHLen, nil
}

// An AtomicAckETH is the value of the word before an atomic operation. [ROCE-OP-7]
type AtomicAckETH uint64

// Append appends the AtomicAckETHLen bytes of h to b.
func (h AtomicAckETH) Append(b []byte) []byte { return binary.BigEndian.AppendUint64(b, uint64(h)) }

// ParseAtomicAckETH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short.
func ParseAtomicAckETH(b []byte) (h AtomicAckETH, n int, err error) {
	if len(b) < AtomicAckETHLen {
		return 0, 0, io.ErrUnexpectedEOF
	}
	return AtomicAckETH(binary.BigEndian.Uint64(b)), AtomicAckETHLen, nil
}
