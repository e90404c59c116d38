package ib

import (
	"encoding/binary"
	"io"
)

// RETHLen is the length in bytes of an RDMA extended header. [ROCE-OP-4]
const RETHLen = 16

// A RETH names the memory of an RDMA Write or Read at the responder. [ROCE-OP-4]
type RETH struct {
	VA     uint64 // address of the first byte, in the address space of the region
	RKey   uint32
	Length uint32 // bytes of the whole message
}

// Append appends the RETHLen bytes of h to b.
func (h RETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// ParseRETH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short.
func ParseRETH(b []byte) (h RETH, n int, err error) {
	if len(b) < RETHLen {
		return RETH{}, 0, io.ErrUnexpectedEOF
	}
	return RETH{
		VA:     binary.BigEndian.Uint64(b),
		RKey:   binary.BigEndian.Uint32(b[8:]),
		Length: binary.BigEndian.Uint32(b[12:]),
	}, RETHLen, nil
}
