package mpa

import (
	"encoding/binary"
	"io"
	"log/slog"
	"strings"
)

// EnhancedLen is the length in bytes of the block that opens the private data
// of an enhanced frame. [MPA2 9]
const EnhancedLen = 4

// DepthULP in the IRD or ORD field means that the ULP negotiates the value by other means.
// [MPA2 9.1]
const DepthULP = 0x3fff

// MaxDepth is the largest value of IRD or ORD that is a number of Reads. [MPA2-9-1]
const MaxDepth = DepthULP - 1

// An RTR is a set of kinds of RTR (ready to receive) message. An Initiator in the peer-to-peer
// model sends an RTR message first. [MPA2 9.2]
type RTR uint8

// These are the kinds of RTR. Each is a message of zero length.
const (
	RTRSend  RTR = 1 << iota // zero-length Send
	RTRWrite                 // zero-length RDMA Write
	RTRRead                  // zero-length RDMA Read
)

// String returns the names of the kinds joined by "+", or "none".
func (r RTR) String() string {
	var s []string
	if r&RTRSend != 0 {
		s = append(s, "send")
	}
	if r&RTRWrite != 0 {
		s = append(s, "write")
	}
	if r&RTRRead != 0 {
		s = append(s, "read")
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, "+")
}

// An Enhanced is the block of RFC 6581 at the front of the private data.
// [MPA2-9-1] [MPA2-9-2]
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+---------------------------+-+-+---------------------------+
//	|A|B|            IRD            |C|D|            ORD            |
//	+-+-+---------------------------+-+-+---------------------------+
type Enhanced struct {
	PeerToPeer bool   // A: peer-to-peer model instead of the client-server model
	RTR        RTR    // B, C, D: the kinds Send, Write, Read that are offered or accepted
	IRD        uint16 // number of RDMA Reads that the sender of the frame can serve at a time, 0..DepthULP
	ORD        uint16 // number of RDMA Reads that the sender wants to have outstanding, 0..DepthULP
}

const (
	enhFlag0  = 0x8000 // A in the first word, C in the second
	enhFlag1  = 0x4000 // B in the first word, D in the second
	enhNumber = 0x3fff
)

// Append appends the EnhancedLen bytes of e to b. Depths are truncated to 14 bits.
func (e Enhanced) Append(b []byte) []byte {
	w0, w1 := e.IRD&enhNumber, e.ORD&enhNumber
	if e.PeerToPeer {
		w0 |= enhFlag0
	}
	if e.RTR&RTRSend != 0 {
		w0 |= enhFlag1
	}
	if e.RTR&RTRWrite != 0 {
		w1 |= enhFlag0
	}
	if e.RTR&RTRRead != 0 {
		w1 |= enhFlag1
	}
	b = binary.BigEndian.AppendUint16(b, w0)
	return binary.BigEndian.AppendUint16(b, w1)
}

// ParseEnhanced decodes the block at the front of b and reports its length.
// The error is io.ErrUnexpectedEOF if b is short.
func ParseEnhanced(b []byte) (e Enhanced, n int, err error) {
	if len(b) < EnhancedLen {
		return Enhanced{}, 0, io.ErrUnexpectedEOF
	}
	w0, w1 := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	e.PeerToPeer = w0&enhFlag0 != 0
	if w0&enhFlag1 != 0 {
		e.RTR |= RTRSend
	}
	if w1&enhFlag0 != 0 {
		e.RTR |= RTRWrite
	}
	if w1&enhFlag1 != 0 {
		e.RTR |= RTRRead
	}
	e.IRD, e.ORD = w0&enhNumber, w1&enhNumber
	return e, EnhancedLen, nil
}

// LogValue describes the block.
func (e Enhanced) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Bool("p2p", e.PeerToPeer),
		slog.String("rtr", e.RTR.String()),
		slog.Int("ird", int(e.IRD)),
		slog.Int("ord", int(e.ORD)),
	)
}
