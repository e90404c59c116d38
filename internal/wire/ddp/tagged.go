package ddp

import (
	"encoding/binary"
	"io"
	"log/slog"
)

// TaggedLen is the length in bytes of a Tagged header. [DDP 4.2] [DDP-4.2-1]
const TaggedLen = 14

// A Tagged is the header of a segment in the Tagged Buffer Model. [DDP 4.2]
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	                                +-+-+-------+---+---------------+
//	                                |T|L| Rsvd  |DV |    RsvdULP    |
//	+-------------------------------+-+-+-------+---+---------------+
//	|                             STag                              |
//	+---------------------------------------------------------------+
//	|                              TO                               |
//	+                                                               +
//	|                                                               |
//	+---------------------------------------------------------------+
type Tagged struct {
	Last    bool
	RsvdULP uint8  // belongs to the ULP; not interpreted here [DDP-4.2-2] [DDP-4.2-3]
	STag    uint32 // names the Tagged Buffer at the Data Sink
	TO      uint64 // offset of the payload in that buffer, in bytes
}

// Append appends the TaggedLen bytes of h to b.
func (h Tagged) Append(b []byte) []byte {
	b = append(b, control(true, h.Last), h.RsvdULP)
	b = binary.BigEndian.AppendUint32(b, h.STag)
	return binary.BigEndian.AppendUint64(b, h.TO)
}

// ParseTagged decodes the header at the front of b and returns its length. The error is
// io.ErrUnexpectedEOF if b is short, ErrModel if the segment is Untagged, and wraps ErrVersion if
// DV is unknown. Reserved bits are ignored. [DDP-4.1-9]
func ParseTagged(b []byte) (h Tagged, n int, err error) {
	if len(b) > 0 {
		if err := checkControl(b[0], true); err != nil {
			return Tagged{}, 0, err
		}
	}
	if len(b) < TaggedLen {
		return Tagged{}, 0, io.ErrUnexpectedEOF
	}
	h.Last = IsLast(b[0])
	h.RsvdULP = b[1]
	h.STag = binary.BigEndian.Uint32(b[2:])
	h.TO = binary.BigEndian.Uint64(b[6:])
	return h, TaggedLen, nil
}

// LogValue describes the header. The key part of the STag is left out.
func (h Tagged) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Bool("last", h.Last),
		slog.Uint64("rsvdulp", uint64(h.RsvdULP)),
		slog.Uint64("stag_index", uint64(h.STag>>8)),
		slog.Uint64("to", h.TO),
	)
}
