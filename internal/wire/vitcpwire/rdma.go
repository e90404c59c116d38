package vitcpwire

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
)

// RDMALen is the length in bytes of an RDMA header. [VIT-3.2.1-1]
const RDMALen = 16

// An RDMA is the RDMA header. Every segment of a message has the same RDMA header. So each segment
// can be placed independently, at Address plus its Data Offset. [VIT 3.2.1] [V-24]
type RDMA struct {
	Address uint64 // address of the first byte in the target's memory [VIT-3.2.1-2]
	Handle  uint32 // handle of that memory [VIT-3.2.1-3]
	Length  uint32 // length of the whole message in bytes, over all segments [VIT-3.2.1-4]
}

// Append appends the RDMALen bytes of r to b.
func (r RDMA) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, r.Address)
	b = binary.BigEndian.AppendUint32(b, r.Handle)
	return binary.BigEndian.AppendUint32(b, r.Length)
}

// ParseRDMA decodes the header at the front of b and reports its length. The
// error is io.ErrUnexpectedEOF if b is short.
func ParseRDMA(b []byte) (r RDMA, n int, err error) {
	if len(b) < RDMALen {
		return RDMA{}, 0, io.ErrUnexpectedEOF
	}
	return RDMA{
		Address: binary.BigEndian.Uint64(b),
		Handle:  binary.BigEndian.Uint32(b[8:]),
		Length:  binary.BigEndian.Uint32(b[12:]),
	}, RDMALen, nil
}

// String describes r in one line. The handle is a key, so only the low byte is shown.
func (r RDMA) String() string {
	return fmt.Sprintf("address=%#x handle=..%02x length=%d", r.Address, uint8(r.Handle), r.Length)
}

// LogValue describes r for logs, with only the low byte of the handle.
func (r RDMA) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("address", fmt.Sprintf("%#x", r.Address)),
		slog.String("handle", fmt.Sprintf("..%02x", uint8(r.Handle))),
		slog.Uint64("length", uint64(r.Length)),
	)
}
