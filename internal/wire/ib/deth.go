package ib

import (
	"encoding/binary"
	"io"
)

// DETHLen is the length in bytes of a datagram extended header. [ROCE-OP-10]
const DETHLen = 8

// A DETH is the header of a datagram. [ROCE-OP-10]
type DETH struct {
	QKey      uint32 // must equal the key of the receiving queue pair
	SourceQPN uint32 // 24 bits: destination of an answer
}

// ManagementQKey is the key of queue pair 1.
const ManagementQKey = 0x80010000

// Append appends the DETHLen bytes of h to b.
func (h DETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, h.QKey)
	return binary.BigEndian.AppendUint32(b, h.SourceQPN&psnMask)
}

// ParseDETH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short.
func ParseDETH(b []byte) (h DETH, n int, err error) {
	if len(b) < DETHLen {
		return DETH{}, 0, io.ErrUnexpectedEOF
	}
	return DETH{QKey: binary.BigEndian.Uint32(b), SourceQPN: binary.BigEndian.Uint32(b[4:]) & psnMask}, DETHLen, nil
}
