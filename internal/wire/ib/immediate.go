package ib

import (
	"encoding/binary"
	"io"
)

// These are the lengths in bytes of the headers of immediate data and of a key to invalidate.
// [ROCE-OP-8] [ROCE-OP-9]
const (
	ImmDtLen = 4
	IETHLen  = 4
)

// An ImmDt is immediate data: four bytes without meaning to the transport. [ROCE-OP-8]
type ImmDt [ImmDtLen]byte

// Append appends the ImmDtLen bytes of h to b.
func (h ImmDt) Append(b []byte) []byte { return append(b, h[:]...) }

// ParseImmDt decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short.
func ParseImmDt(b []byte) (h ImmDt, n int, err error) {
	if len(b) < ImmDtLen {
		return ImmDt{}, 0, io.ErrUnexpectedEOF
	}
	return ImmDt(b[:ImmDtLen]), ImmDtLen, nil
}

// An IETH is the remote key a Send with Invalidate invalidates. [ROCE-OP-9]
type IETH uint32

// Append appends the IETHLen bytes of h to b.
func (h IETH) Append(b []byte) []byte { return binary.BigEndian.AppendUint32(b, uint32(h)) }

// ParseIETH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short.
func ParseIETH(b []byte) (h IETH, n int, err error) {
	if len(b) < IETHLen {
		return 0, 0, io.ErrUnexpectedEOF
	}
	return IETH(binary.BigEndian.Uint32(b)), IETHLen, nil
}
