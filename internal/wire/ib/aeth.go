package ib

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// AETHLen is the length in bytes of an ACK extended header. [ROCE-OP-5]
const AETHLen = 4

// An AETH is the header of every response except the middle packets of a Read. [ROCE-OP-5]
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits: number of messages that the responder has completed
}

// A Syndrome classifies a response; the upper three bits are the type. [ROCE-OP-5]
type Syndrome uint8

// A SyndromeType is the type of a Syndrome.
type SyndromeType uint8

// These are the types of a Syndrome. Other values are reserved.
const (
	TypeACK SyndromeType = 0 // the lower bits are flow control credits
	TypeRNR SyndromeType = 1 // receiver not ready; the lower bits are a timer
	TypeNAK SyndromeType = 3 // the lower bits are a code
)

// These are the syndromes of NAKs, and of an ACK without flow control. [ROCE-OP-13]
const (
	ACK               Syndrome = 0x1f
	NAKSequence       Syndrome = 0x60 // a packet is missing
	NAKInvalidRequest Syndrome = 0x61
	NAKRemoteAccess   Syndrome = 0x62
	NAKRemoteOp       Syndrome = 0x63 // the responder failed
)

const rnrBase Syndrome = 0x20

// RNR returns the syndrome of an unready responder, with the code of the timer, 0 to 31.
func RNR(timer uint8) Syndrome { return rnrBase | Syndrome(timer&31) }

// Type returns the type of the syndrome.
func (s Syndrome) Type() SyndromeType { return SyndromeType(s >> 5) }

// String names the syndrome.
func (s Syndrome) String() string {
	switch s.Type() {
	case TypeACK:
		return "ACK"
	case TypeRNR:
		return fmt.Sprintf("RNR NAK %v", RNRTime(uint8(s)))
	}
	switch s {
	case NAKSequence:
		return "NAK PSN sequence error"
	case NAKInvalidRequest:
		return "NAK invalid request"
	case NAKRemoteAccess:
		return "NAK remote access error"
	case NAKRemoteOp:
		return "NAK remote operational error"
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}

// rnrTimes are the timers of RNR NAKs in units of 10 us, by their code. [ROCE-OP-14]
var rnrTimes = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTime returns how long a requester must wait for a timer code. The upper three bits of code are
// ignored. [ROCE-OP-14]
func RNRTime(code uint8) time.Duration {
	return time.Duration(rnrTimes[code&31]) * 10 * time.Microsecond
}

// Append appends the AETHLen bytes of h to b.
func (h AETH) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(h.Syndrome)<<24|h.MSN&psnMask)
}

// ParseAETH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short.
func ParseAETH(b []byte) (h AETH, n int, err error) {
	if len(b) < AETHLen {
		return AETH{}, 0, io.ErrUnexpectedEOF
	}
	w := binary.BigEndian.Uint32(b)
	return AETH{Syndrome: Syndrome(w >> 24), MSN: w & psnMask}, AETHLen, nil
}
