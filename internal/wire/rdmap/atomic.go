package rdmap

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
)

// These are the lengths in bytes of the headers of RFC 7306. A sentence of section 4 gives a larger
// length for the Atomic Response; the figure has 12 bytes. [RDMAPX-4-1] [RDMAPX-4-2] [I-69]
const (
	AtomicRequestLen  = 52
	AtomicResponseLen = 12
)

// An AtomicOp is the operation of an Atomic Request. [RDMAPX 5.2.1] [RDMAPX-5.2.1-2]
type AtomicOp uint8

// These are the operations. Code 1 is reserved, the others are unassigned. [I-67]
const (
	FetchAdd AtomicOp = 0
	CmpSwap  AtomicOp = 2

	atomicOpMask = 0x0f
)

// String returns the name of the operation, or the number in hex.
func (o AtomicOp) String() string {
	switch o {
	case FetchAdd:
		return "FetchAdd"
	case CmpSwap:
		return "CmpSwap"
	}
	return fmt.Sprintf("atomic 0x%x", uint8(o))
}

// Supported reports whether the operation exists. An end must support both operations or none.
// [RDMAPX-5-3] [RDMAPX-5.2.1-10]
func (o AtomicOp) Supported() bool { return o == FetchAdd || o == CmpSwap }

// An AtomicRequest is the RDMAP header of an Atomic Request message: its whole DDP payload. The
// first word is 28 reserved bits and 4 bits of Op; reserved bits are sent as zero and ignored on
// receipt. [RDMAPX 5.2.1] [RDMAPX-5.2.1-1]
type AtomicRequest struct {
	Op          AtomicOp
	ID          uint32 // chosen by the requester, repeated in the response [RDMAPX-5.2.1-3]
	STag        uint32
	TO          uint64 // offset of a word whose address must be a multiple of 8
	Data        uint64 // Add Data or Swap Data
	Mask        uint64 // Add Mask or Swap Mask
	Compare     uint64 // CmpSwap only
	CompareMask uint64 // CmpSwap only
}

// NewFetchAdd returns the request to add add to the word at (stag, to). Each set bit of mask is the
// top bit of a separate field, and carries out of a field are dropped. With a mask of zero the word
// is a single field. Header fields FetchAdd does not use get the values the RFC requires.
// [RDMAPX-5.2.1-5]
func NewFetchAdd(stag uint32, to, add, mask uint64) AtomicRequest {
	return AtomicRequest{Op: FetchAdd, STag: stag, TO: to, Data: add, Mask: mask, CompareMask: ^uint64(0)}
}

// NewCmpSwap returns a conditional request for the word at (stag, to). If the word equals compare
// in the bits of compareMask, the bits of swapMask are replaced by the bits of swap.
func NewCmpSwap(stag uint32, to, compare, compareMask, swap, swapMask uint64) AtomicRequest {
	return AtomicRequest{Op: CmpSwap, STag: stag, TO: to, Data: swap, Mask: swapMask,
		Compare: compare, CompareMask: compareMask}
}

// Append appends the AtomicRequestLen bytes of r to b.
func (r AtomicRequest) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(r.Op&atomicOpMask))
	b = binary.BigEndian.AppendUint32(b, r.ID)
	b = binary.BigEndian.AppendUint32(b, r.STag)
	b = binary.BigEndian.AppendUint64(b, r.TO)
	b = binary.BigEndian.AppendUint64(b, r.Data)
	b = binary.BigEndian.AppendUint64(b, r.Mask)
	b = binary.BigEndian.AppendUint64(b, r.Compare)
	return binary.BigEndian.AppendUint64(b, r.CompareMask)
}

// ParseAtomicRequest decodes the header at the front of b and returns its length. The error is
// io.ErrUnexpectedEOF if b is short. Unassigned operations are decoded too; see AtomicOp.Supported.
func ParseAtomicRequest(b []byte) (r AtomicRequest, n int, err error) {
	if len(b) < AtomicRequestLen {
		return AtomicRequest{}, 0, io.ErrUnexpectedEOF
	}
	r.Op = AtomicOp(b[3] & atomicOpMask)
	r.ID = binary.BigEndian.Uint32(b[4:])
	r.STag = binary.BigEndian.Uint32(b[8:])
	r.TO = binary.BigEndian.Uint64(b[12:])
	r.Data = binary.BigEndian.Uint64(b[20:])
	r.Mask = binary.BigEndian.Uint64(b[28:])
	r.Compare = binary.BigEndian.Uint64(b[36:])
	r.CompareMask = binary.BigEndian.Uint64(b[44:])
	return r, AtomicRequestLen, nil
}

// Apply returns the new value of a word whose value was old. For CmpSwap, changed reports whether
// the comparison succeeded. For FetchAdd changed is always true. An unsupported operation changes
// nothing. [RDMAPX-5.1.2-1] [RDMAPX-5.1.2-2]
func (r AtomicRequest) Apply(old uint64) (word uint64, changed bool) {
	switch r.Op {
	case FetchAdd: // compare fields are ignored [RDMAPX-5.2.1-5]
		return MaskedAdd(old, r.Data, r.Mask), true
	case CmpSwap:
		if (r.Compare^old)&r.CompareMask != 0 {
			return old, false
		}
		return old&^r.Mask | r.Data&r.Mask, true
	}
	return old, false
}

// MaskedAdd adds a and b as words of independent fields. Each bit set in mask is the most
// significant bit of a field, and no carry leaves a field. A mask of zero means a single field of
// 64 bits. [RDMAPX-5.1.1-1] [RDMAPX-5.1.1-6]
func MaskedAdd(a, b, mask uint64) uint64 {
	// The words are added without the top bits, so that no carry leaves a field. Then the top bits
	// are added without a carry.
	return (a&^mask + b&^mask) ^ (a^b)&mask
}

// LogValue describes the request. The key part of the STag is left out.
func (r AtomicRequest) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("op", r.Op.String()),
		slog.Uint64("id", uint64(r.ID)),
		slog.Uint64("stag_index", uint64(r.STag>>8)),
		slog.Uint64("to", r.TO),
	)
}

// An AtomicResponse is the RDMAP header of an Atomic Response message: its
// whole DDP payload. [RDMAPX 5.2.2]
type AtomicResponse struct {
	ID    uint32 // identifier of the request
	Value uint64 // value of the word before the operation [RDMAPX-5.1.1-8]
}

// Append appends the AtomicResponseLen bytes of r to b.
func (r AtomicResponse) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.ID)
	return binary.BigEndian.AppendUint64(b, r.Value)
}

// ParseAtomicResponse decodes the header at the front of b and reports its
// length. The error is io.ErrUnexpectedEOF if b is short.
func ParseAtomicResponse(b []byte) (r AtomicResponse, n int, err error) {
	if len(b) < AtomicResponseLen {
		return AtomicResponse{}, 0, io.ErrUnexpectedEOF
	}
	r.ID = binary.BigEndian.Uint32(b)
	r.Value = binary.BigEndian.Uint64(b[4:])
	return r, AtomicResponseLen, nil
}

// LogValue describes the response.
func (r AtomicResponse) LogValue() slog.Value {
	return slog.GroupValue(slog.Uint64("id", uint64(r.ID)))
}
