package rdmap

import (
	"encoding/binary"
	"io"
	"log/slog"
)

// ReadRequestLen is the length in bytes of a Read Request header. [RDMAP 4.4]
const ReadRequestLen = 28

// A ReadRequest is the RDMAP header of a Read Request message: its whole DDP
// payload. [RDMAP 4.4] [RDMAP-4.4-1]
type ReadRequest struct {
	SinkSTag   uint32 // repeated in the response, not interpreted [RDMAP-4.4-2]
	SinkTO     uint64 // any offset is valid [RDMAP-4.4-3]
	Size       uint32 // in bytes, 0 to 2^32-1 [RDMAP-4.4-4]
	SourceSTag uint32
	SourceTO   uint64
}

// Append appends the ReadRequestLen bytes of r to b.
func (r ReadRequest) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SourceSTag)
	return binary.BigEndian.AppendUint64(b, r.SourceTO)
}

// ParseReadRequest decodes the header at the front of b and reports its length.
// The error is io.ErrUnexpectedEOF if b is short.
func ParseReadRequest(b []byte) (r ReadRequest, n int, err error) {
	if len(b) < ReadRequestLen {
		return ReadRequest{}, 0, io.ErrUnexpectedEOF
	}
	r.SinkSTag = binary.BigEndian.Uint32(b)
	r.SinkTO = binary.BigEndian.Uint64(b[4:])
	r.Size = binary.BigEndian.Uint32(b[12:])
	r.SourceSTag = binary.BigEndian.Uint32(b[16:])
	r.SourceTO = binary.BigEndian.Uint64(b[20:])
	return r, ReadRequestLen, nil
}

// Advance returns the request for the bytes after the first n. It is for the Terminate of a
// response that failed after n bytes. [RDMAP-4.8-12]
func (r ReadRequest) Advance(n uint32) ReadRequest {
	r.SinkTO += uint64(n)
	r.SourceTO += uint64(n)
	r.Size -= n
	return r
}

// LogValue describes the request. The key parts of the STags are left out.
func (r ReadRequest) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Uint64("sink_index", uint64(r.SinkSTag>>8)),
		slog.Uint64("sink_to", r.SinkTO),
		slog.Uint64("size", uint64(r.Size)),
		slog.Uint64("source_index", uint64(r.SourceSTag>>8)),
		slog.Uint64("source_to", r.SourceTO),
	)
}
