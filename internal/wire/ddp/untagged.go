package ddp

import (
	"encoding/binary"
	"io"
	"log/slog"

	"viaduct/internal/fault"
)

// UntaggedLen is the length in bytes of an Untagged header. [DDP 4.3]
// [DDP-4.3-1]
const UntaggedLen = 18

// RsvdULPLen is the length in bytes of the field an Untagged header carries for the ULP. [DDP 4.3]
const RsvdULPLen = 5

// An Untagged is the header of a segment in the Untagged Buffer Model.
// [DDP 4.3]
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	                                +-+-+-------+---+---------------+
//	                                |T|L| Rsvd  |DV | RsvdULP[0:8]  |
//	+-------------------------------+-+-+-------+---+---------------+
//	|                         RsvdULP[8:40]                         |
//	+---------------------------------------------------------------+
//	|                              QN                               |
//	+---------------------------------------------------------------+
//	|                              MSN                              |
//	+---------------------------------------------------------------+
//	|                              MO                               |
//	+---------------------------------------------------------------+
type Untagged struct {
	Last    bool
	RsvdULP [RsvdULPLen]byte // belongs to the ULP [DDP-4.3-2] [DDP-4.3-3]
	QN      uint32           // queue of buffers at the Data Sink
	MSN     MSN              // number of the buffer in the queue
	MO      uint32           // offset of the payload in the message, in bytes
}

// Append appends the UntaggedLen bytes of h to b.
func (h Untagged) Append(b []byte) []byte {
	b = append(b, control(false, h.Last))
	b = append(b, h.RsvdULP[:]...)
	b = binary.BigEndian.AppendUint32(b, h.QN)
	if fault.On("ddp-first-msn") && h.QN == 0 {
		h.MSN--
	}
	if fault.On("ddp-mo") && h.MO > 0 {
		h.MO++
	}
	b = binary.BigEndian.AppendUint32(b, uint32(h.MSN))
	return binary.BigEndian.AppendUint32(b, h.MO)
}

// ParseUntagged decodes the header at the front of b and returns its length. The error is
// io.ErrUnexpectedEOF if b is short, ErrModel if the segment is Tagged, and wraps ErrVersion if DV
// is unknown. Reserved bits are ignored. [DDP-4.1-9]
func ParseUntagged(b []byte) (h Untagged, n int, err error) {
	if len(b) > 0 {
		if err := checkControl(b[0], false); err != nil {
			return Untagged{}, 0, err
		}
	}
	if len(b) < UntaggedLen {
		return Untagged{}, 0, io.ErrUnexpectedEOF
	}
	h.Last = IsLast(b[0])
	copy(h.RsvdULP[:], b[1:])
	h.QN = binary.BigEndian.Uint32(b[6:])
	h.MSN = MSN(binary.BigEndian.Uint32(b[10:]))
	h.MO = binary.BigEndian.Uint32(b[14:])
	return h, UntaggedLen, nil
}

// LogValue describes the header.
func (h Untagged) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Bool("last", h.Last),
		slog.Uint64("qn", uint64(h.QN)),
		slog.Uint64("msn", uint64(h.MSN)),
		slog.Uint64("mo", uint64(h.MO)),
	)
}
