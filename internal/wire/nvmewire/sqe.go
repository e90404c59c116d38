package nvmewire

import (
	"encoding/binary"
	"errors"
)

var le = binary.LittleEndian

// Sizes in bytes.
const (
	SQELen     = 64   // a submission queue entry, the least capsule of a command
	CQELen     = 16   // a completion queue entry, the capsule of a response
	ConnectLen = 1024 // the data of Connect
	PageLen    = 4096 // the data of Identify
)

// ErrShort is returned by the Parse functions if there are too few bytes.
var ErrShort = errors.New("nvmewire: too short")

// An SQE is a submission queue entry: a command.
type SQE struct { // [NVME-SQE-1]
	Opcode uint8
	Flags  uint8  // PSDT in bits 7:6
	CID    uint16 // opaque to the target
	NSID   uint32 // for commands on a namespace
	FCType uint8  // for fabrics commands; the first byte of NSID
	SGL    SGL
	CDW    [6]uint32 // command dwords 10 to 15
}

// ParseSQE decodes the entry at the front of a command capsule; the data of the command follows.
// The error is ErrShort if b is too short.
func ParseSQE(b []byte) (s SQE, err error) {
	if len(b) < SQELen {
		return s, ErrShort
	}
	s = SQE{Opcode: b[0], Flags: b[1], CID: le.Uint16(b[2:]), NSID: le.Uint32(b[4:]), FCType: b[4],
		SGL: parseSGL(b[24:40])}
	for i := range s.CDW {
		s.CDW[i] = le.Uint32(b[40+4*i:])
	}
	return s, nil
}

// Append appends the SQELen bytes of the entry to b. Opcode decides whether NSID or FCType is
// encoded.
func (s *SQE) Append(b []byte) []byte {
	b = append(b, s.Opcode, s.Flags)
	b = le.AppendUint16(b, s.CID)
	if s.Opcode == OpFabrics {
		b = append(b, s.FCType, 0, 0, 0)
	} else {
		b = le.AppendUint32(b, s.NSID)
	}
	b = append(b, make([]byte, 16)...)
	b = s.SGL.append(b)
	for _, d := range s.CDW {
		b = le.AppendUint32(b, d)
	}
	return b
}

// UsesSGL reports whether the data pointer is an SGL, as fabrics requires; the alternative is PRPs.
func (s *SQE) UsesSGL() bool { return s.Flags>>6 == 1 || s.Flags>>6 == 2 } // [NVME-SQE-2]

// CDW64 returns the 64-bit value of command dwords 10+i and 11+i.
func (s *SQE) CDW64(i int) uint64 { return uint64(s.CDW[i]) | uint64(s.CDW[i+1])<<32 }

// Range returns the first block and the number of blocks of an I/O command. On the wire the number
// is reduced by 1.
func (s *SQE) Range() (first uint64, blocks uint32) { // [NVME-IO-1]
	return s.CDW64(0), s.CDW[2]&0xffff + 1
}

// The types of SGL descriptors in use: type in bits 7:4, subtype in bits 3:0.
const ( // [NVME-SGL-1]
	SGLOffset          = 0x01 // data block in the capsule; Addr is an offset in its data
	SGLKeyed           = 0x40 // keyed data block
	SGLKeyedInvalidate = 0x4f // keyed data block whose key the response invalidates
)

// An SGL is the descriptor of an SQE's data.
type SGL struct {
	Type   uint8
	Addr   uint64
	Length uint32 // 24 bits in keyed descriptors
	Key    uint32 // 0 in descriptors without a key
}

func parseSGL(b []byte) SGL {
	g := SGL{Type: b[15], Addr: le.Uint64(b)}
	if g.keyed() {
		g.Length, g.Key = uint32(b[8])|uint32(b[9])<<8|uint32(b[10])<<16, le.Uint32(b[11:])
	} else {
		g.Length = le.Uint32(b[8:])
	}
	return g
}

func (g SGL) append(b []byte) []byte {
	b = le.AppendUint64(b, g.Addr)
	if g.keyed() {
		b = append(b, byte(g.Length), byte(g.Length>>8), byte(g.Length>>16))
		b = le.AppendUint32(b, g.Key)
	} else {
		b = append(le.AppendUint32(b, g.Length), 0, 0, 0)
	}
	return append(b, g.Type)
}

func (g SGL) keyed() bool { return g.Type>>4 == SGLKeyed>>4 }

// Valid reports whether the transport supports the type.
func (g SGL) Valid() bool {
	return g.Type == SGLOffset || g.Type == SGLKeyed || g.Type == SGLKeyedInvalidate
}

// Invalidates reports whether the response must invalidate the key. A descriptor of length 0 names
// no memory.
func (g SGL) Invalidates() bool { return g.Type == SGLKeyedInvalidate && g.Length > 0 } // [NVME-SGL-2]
