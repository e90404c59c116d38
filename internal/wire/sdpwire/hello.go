package sdpwire

import (
	"encoding/binary"
	"io"
	"log/slog"

	"viaduct/internal/fault"
)

// These versions of the protocol are implemented.
const (
	MajV = 1 // [SDP-6.2.1.1-1] [SDP-6.2.2.1-1]
	MinV = 1 // [SDP-6.2.1.2-1] [SDP-6.2.2.2-1]
)

// A Hello opens an SDP connection; the Connecting Peer sends it while the
// stream is not yet in iWARP mode. [SDP-6.2.1-2]
//
//	Figure layout, after the BSDH:
//	|        MaxAdverts         |     Rsvd     | MinV | MajV |
//	|                       DesRemRcvSz                       |
//	|                       LocalRcvSz                        |
//	|          LocIRD           |           LocORD            |
type Hello struct {
	Bufs        uint16 // number of posted receive Private Buffers; at least MinBuffers
	MajV        uint8  // 4 bits
	MinV        uint8  // 4 bits
	MaxAdverts  uint16 // number of advertisements that the sender accepts at one time; at least 1
	DesRemRcvSz uint32 // requested size of the peer's receive buffers in bytes; a hint
	LocalRcvSz  uint32 // size of the sender's receive Private Buffers in bytes
	LocIRD      uint16 // number of inbound RDMA Reads that the sender can serve; at least 1
	LocORD      uint16 // number of outbound RDMA Reads that the sender may have outstanding; at least 1
}

// Append appends the HelloLen bytes of h. Len, Flags, MSeq and MSeqAck have the values the draft
// requires. [SDP-6.2.1-3] Reserved bits are zero. [SDP-6.2.1.8-1]
func (h Hello) Append(b []byte, l Layout) []byte {
	b = bsdh{mid: HelloMID, bufs: h.Bufs, len: HelloLen}.append(b, l)
	b = appendVersions(b, l, h.MaxAdverts, h.MajV, h.MinV)
	b = binary.BigEndian.AppendUint32(b, h.DesRemRcvSz)
	b = binary.BigEndian.AppendUint32(b, h.LocalRcvSz)
	return appendDepths(b, l, h.LocIRD, h.LocORD)
}

// ParseHello decodes a Hello at the front of b and reports its length. MSeq, MSeqAck [SDP-6.2.1-4]
// and reserved bits [SDP-6.2.1.8-2] are ignored, and so are Flags: DetectLayout refuses a Hello
// with Flags. [D-07] The caller must check whether the values are acceptable. The error is
// io.ErrUnexpectedEOF if b is short, ErrMID or ErrLen if the BSDH does not belong to a Hello.
func ParseHello(b []byte, l Layout) (h Hello, n int, err error) {
	bs, err := parseBSDH(b, l)
	switch {
	case err != nil:
		return h, 0, err
	case bs.mid != HelloMID:
		return h, 0, ErrMID
	case bs.len != HelloLen:
		return h, 0, ErrLen // [SDP-6.1.4-1]
	case len(b) < HelloLen:
		return h, 0, io.ErrUnexpectedEOF
	}
	h.Bufs = bs.bufs
	h.MaxAdverts, h.MajV, h.MinV = parseVersions(b[16:], l)
	h.DesRemRcvSz = binary.BigEndian.Uint32(b[20:])
	h.LocalRcvSz = binary.BigEndian.Uint32(b[24:])
	h.LocIRD, h.LocORD = parseDepths(b[28:], l)
	return h, HelloLen, nil
}

// LogValue returns the fields as attributes.
func (h Hello) LogValue() slog.Value {
	return slog.GroupValue(slog.String("mid", "Hello"), slog.Int("bufs", int(h.Bufs)),
		slog.Int("majv", int(h.MajV)), slog.Int("minv", int(h.MinV)), slog.Int("maxadverts", int(h.MaxAdverts)),
		slog.Uint64("desremrcvsz", uint64(h.DesRemRcvSz)), slog.Uint64("localrcvsz", uint64(h.LocalRcvSz)),
		slog.Int("ird", int(h.LocIRD)), slog.Int("ord", int(h.LocORD)))
}

// A HelloAck accepts a connection; it is the first iWARP message of the
// Accepting Peer. [SDP-6.2.2-2]
//
//	Figure layout, after the BSDH:
//	|        MaxAdverts         |     Rsvd     | MinV | MajV |
//	|                        ActRcvSz                         |
//	|          LocIRD           |           LocORD            |
type HelloAck struct {
	Bufs       uint16 // number of posted receive Private Buffers; at least MinBuffers
	MajV       uint8  // 4 bits
	MinV       uint8  // 4 bits
	MaxAdverts uint16 // number of advertisements that the sender accepts at one time; at least 1
	ActRcvSz   uint32 // size of the sender's receive Private Buffers in bytes
	LocIRD     uint16 // number of inbound RDMA Reads that the sender can serve; at least 1
	LocORD     uint16 // number of outbound RDMA Reads that the sender may have outstanding; at least 1
}

// Append appends the HelloAckLen bytes of h. [SDP-6.2.2-3] Reserved bits are
// zero. [SDP-6.2.2.7-1]
func (h HelloAck) Append(b []byte, l Layout) []byte {
	if fault.On("sdp-adverts") {
		h.MaxAdverts = 0
	}
	b = bsdh{mid: HelloAckMID, bufs: h.Bufs, len: HelloAckLen}.append(b, l)
	b = appendVersions(b, l, h.MaxAdverts, h.MajV, h.MinV)
	b = binary.BigEndian.AppendUint32(b, h.ActRcvSz)
	return appendDepths(b, l, h.LocIRD, h.LocORD)
}

// ParseHelloAck decodes a HelloAck at the front of b and reports its length;
// see ParseHello. [SDP-6.2.2-4] [SDP-6.2.2.7-2]
func ParseHelloAck(b []byte, l Layout) (h HelloAck, n int, err error) {
	bs, err := parseBSDH(b, l)
	switch {
	case err != nil:
		return h, 0, err
	case bs.mid != HelloAckMID:
		return h, 0, ErrMID
	case bs.len != HelloAckLen:
		return h, 0, ErrLen // [SDP-6.1.4-1]
	case len(b) < HelloAckLen:
		return h, 0, io.ErrUnexpectedEOF
	}
	h.Bufs = bs.bufs
	h.MaxAdverts, h.MajV, h.MinV = parseVersions(b[16:], l)
	h.ActRcvSz = binary.BigEndian.Uint32(b[20:])
	h.LocIRD, h.LocORD = parseDepths(b[24:], l)
	return h, HelloAckLen, nil
}

// LogValue returns the fields as attributes.
func (h HelloAck) LogValue() slog.Value {
	return slog.GroupValue(slog.String("mid", "HelloAck"), slog.Int("bufs", int(h.Bufs)),
		slog.Int("majv", int(h.MajV)), slog.Int("minv", int(h.MinV)), slog.Int("maxadverts", int(h.MaxAdverts)),
		slog.Uint64("actrcvsz", uint64(h.ActRcvSz)), slog.Int("ird", int(h.LocIRD)), slog.Int("ord", int(h.LocORD)))
}

func appendVersions(b []byte, l Layout, adverts uint16, maj, min uint8) []byte {
	if l == IBTA {
		b = append(b, maj<<4|min&0xf, 0)
		return binary.BigEndian.AppendUint16(b, adverts)
	}
	b = binary.BigEndian.AppendUint16(b, adverts)
	return append(b, 0, min<<4|maj&0xf)
}

func parseVersions(b []byte, l Layout) (adverts uint16, maj, min uint8) {
	if l == IBTA {
		return binary.BigEndian.Uint16(b[2:]), b[0] >> 4, b[0] & 0xf
	}
	return binary.BigEndian.Uint16(b), b[3] & 0xf, b[3] >> 4
}

func appendDepths(b []byte, l Layout, ird, ord uint16) []byte {
	if l == IBTA {
		ird, ord = ord, ird
	}
	b = binary.BigEndian.AppendUint16(b, ird)
	return binary.BigEndian.AppendUint16(b, ord)
}

func parseDepths(b []byte, l Layout) (ird, ord uint16) {
	ird, ord = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if l == IBTA {
		ird, ord = ord, ird
	}
	return ird, ord
}
