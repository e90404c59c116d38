package rdmap

import "io"

// ImmediateLen is the length in bytes of the body of an Immediate Data message.
// [RDMAPX 6.3] [RDMAPX-6.3-5]
const ImmediateLen = 8

// ImmediateData is the body of an Immediate Data message: its whole DDP
// payload, eight bytes without meaning to RDMAP.
type ImmediateData [ImmediateLen]byte

// Append appends the ImmediateLen bytes of d to b.
func (d ImmediateData) Append(b []byte) []byte { return append(b, d[:]...) }

// ParseImmediate decodes the body at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short; a receiver must refuse a longer body, see [CheckUntagged].
func ParseImmediate(b []byte) (d ImmediateData, n int, err error) {
	if len(b) < ImmediateLen {
		return ImmediateData{}, 0, io.ErrUnexpectedEOF
	}
	copy(d[:], b)
	return d, ImmediateLen, nil
}
