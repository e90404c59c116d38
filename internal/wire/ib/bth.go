package ib

import (
	"encoding/binary"
	"io"
)

// BTHLen is the length in bytes of a base transport header. [ROCE-BTH-1]
const BTHLen = 12

// These are the queue pair numbers with a special meaning.
const (
	ManagementQPN = 1         // general services: connection management
	MulticastQPN  = 1<<24 - 1 // every queue pair of the group
)

// DefaultPKey is the partition key of a full member of the default partition. [ROCE-BTH-4]
const DefaultPKey = 0xffff

// A BTH is the base transport header, the first header of every packet. [ROCE-BTH-1]
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-+-+---+-------+-------------------------------+
//	|    Opcode     |S|M|Pad| TVer  |             P_Key             |
//	+---------------+-+-+---+-------+-------------------------------+
//	|  reserved 8a  |            destination queue pair             |
//	+-+-------------+-----------------------------------------------+
//	|A| reserved 7  |            packet sequence number             |
//	+-+-------------+-----------------------------------------------+
type BTH struct {
	Opcode    Opcode
	Solicited bool  // S: the message requests an event
	Migrated  bool  // M: state of automatic path migration, which is not used
	Pad       uint8 // bytes after the payload, 0 to 3
	Version   uint8 // TVer, 0 [ROCE-BTH-2]
	PKey      uint16
	QPN       uint32 // 24 bits
	AckReq    bool   // A: an acknowledgement is requested
	PSN       PSN
}

// Append appends the BTHLen bytes of h to b. Reserved bits are zero. [ROCE-BTH-6]
func (h BTH) Append(b []byte) []byte {
	flags := h.Pad&3<<4 | h.Version&15
	if h.Solicited {
		flags |= 0x80
	}
	if h.Migrated {
		flags |= 0x40
	}
	b = append(b, byte(h.Opcode), flags)
	b = binary.BigEndian.AppendUint16(b, h.PKey)
	b = binary.BigEndian.AppendUint32(b, h.QPN&psnMask)
	psn := uint32(h.PSN) & psnMask
	if h.AckReq {
		psn |= 1 << 31
	}
	return binary.BigEndian.AppendUint32(b, psn)
}

// DestQPN returns the destination queue pair number in the BTHLen bytes of a header.
func DestQPN(b []byte) uint32 { return binary.BigEndian.Uint32(b[4:]) & psnMask }

// ParseBTH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short. Reserved bits are ignored. [ROCE-BTH-6]
func ParseBTH(b []byte) (h BTH, n int, err error) {
	if len(b) < BTHLen {
		return BTH{}, 0, io.ErrUnexpectedEOF
	}
	psn := binary.BigEndian.Uint32(b[8:])
	return BTH{
		Opcode:    Opcode(b[0]),
		Solicited: b[1]&0x80 != 0,
		Migrated:  b[1]&0x40 != 0,
		Pad:       b[1] >> 4 & 3,
		Version:   b[1] & 15,
		PKey:      binary.BigEndian.Uint16(b[2:]),
		QPN:       binary.BigEndian.Uint32(b[4:]) & psnMask,
		AckReq:    psn>>31 != 0,
		PSN:       PSN(psn & psnMask),
	}, BTHLen, nil
}

// PKeyMatches reports whether a queue pair with partition key b accepts packets with partition key
// a. Both must be in the same partition, and at least one must be a full member. [ROCE-BTH-4]
func PKeyMatches(a, b uint16) bool {
	const full = 0x8000
	return a&^full == b&^full && a&^full != 0 && (a|b)&full != 0
}
