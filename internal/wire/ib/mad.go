package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MADLen is the length in bytes of a management datagram. [ROCE-CM-1]
const MADLen = 256

const madHeaderLen = 24

// ErrMAD reports a management datagram outside connection management, or with an unknown version or
// kind.
var ErrMAD = errors.New("ib: no datagram of connection management")

// madStart begins the header of each message of connection management: base version, class, version
// of the class, method Send. [ROCE-CM-1]
var madStart = [4]byte{1, 7, 2, 3}

// A CMKind is the kind of a message of connection management: the attribute of its header. [ROCE-CM-2]
type CMKind uint16

// These are the kinds of message.
const (
	CMReq CMKind = 0x10 + iota
	CMMRA
	CMRej
	CMRep
	CMRTU
	CMDReq
	CMDRep
	CMSIDRReq
	CMSIDRRep
)

var cmKindNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"}

// String returns the name of the kind.
func (k CMKind) String() string {
	if k >= CMReq && int(k-CMReq) < len(cmKindNames) {
		return cmKindNames[k-CMReq]
	}
	return fmt.Sprintf("attribute %#x", uint16(k))
}

// privateAt holds the offsets, after the header, of the beginning and the end of the private data
// of each kind. [ROCE-CM-3]
var privateAt = map[CMKind][2]int{
	CMReq: {140, 232}, CMMRA: {10, 232}, CMRej: {84, 232}, CMRep: {36, 232}, CMRTU: {8, 232},
	CMDReq: {12, 232}, CMDRep: {8, 232},
	CMSIDRReq: {16, 232}, CMSIDRRep: {96, 232},
}

// PrivateLen returns how many bytes of private data a message of the kind has.
func (k CMKind) PrivateLen() int { return privateAt[k][1] - privateAt[k][0] }

// A CM is a message of connection management. The kind determines the fields of the message; all
// other fields are ignored. [ROCE-CM-2]
type CM struct {
	Kind   CMKind
	TID    uint64 // transaction
	Local  uint32 // number of the connection at the sender, or of a SIDR request
	Remote uint32 // number of the connection at the receiver; absent in REQ and SIDR messages

	Req  CMRequest
	Rep  CMReply
	SIDR CMService

	About   CMAbout // the kind of message that an MRA or REJ answers
	Service uint8   // in an MRA: code of the time that the sender needs, coded like an ACK timeout
	Reason  uint16  // in a REJ: why the sender refuses
	QPN     uint32  // in a DREQ: the receiver's queue pair

	Private []byte // of length PrivateLen after Parse; Append pads it with zeros
}

// A CMAbout names the kind of message a REJ or MRA answers.
type CMAbout uint8

// These are the kinds of message a REJ or MRA can name.
const (
	AboutReq CMAbout = iota
	AboutRep
	AboutOther
)

// These are the reasons of a REJ named by the package. [ROCE-CM-6]
const (
	RejectTimeout          = 4
	RejectInvalidServiceID = 8
	RejectStale            = 10
	RejectConsumer         = 28
)

// Append appends the MADLen bytes of m to b. Private data beyond PrivateLen is left out.
func (m *CM) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, MADLen)...)
	h := b[at:]
	copy(h, madStart[:])
	binary.BigEndian.PutUint64(h[8:], m.TID)
	binary.BigEndian.PutUint16(h[16:], uint16(m.Kind))
	d := h[madHeaderLen:]
	binary.BigEndian.PutUint32(d, m.Local)
	switch m.Kind {
	case CMReq:
		m.Req.put(d)
	case CMSIDRReq, CMSIDRRep:
		m.SIDR.put(d, m.Kind)
	default:
		binary.BigEndian.PutUint32(d[4:], m.Remote)
	}
	switch m.Kind {
	case CMRep:
		m.Rep.put(d)
	case CMMRA:
		d[8], d[9] = byte(m.About)<<6, m.Service<<3
	case CMRej:
		d[8] = byte(m.About) << 6
		binary.BigEndian.PutUint16(d[10:], m.Reason)
	case CMDReq:
		put24(d[8:], m.QPN)
	}
	p := privateAt[m.Kind]
	copy(d[p[0]:p[1]], m.Private)
	return b
}

// ParseCM decodes the message at the front of b. Private refers to b. The errors are
// io.ErrUnexpectedEOF and ErrMAD.
func ParseCM(b []byte) (m CM, err error) {
	if len(b) < MADLen {
		return CM{}, io.ErrUnexpectedEOF
	}
	kind := CMKind(binary.BigEndian.Uint16(b[16:]))
	p, known := privateAt[kind]
	if [4]byte(b) != madStart || !known {
		return CM{}, fmt.Errorf("%w: % x, %v", ErrMAD, b[:4], kind)
	}
	d := b[madHeaderLen:MADLen]
	m = CM{Kind: kind, TID: binary.BigEndian.Uint64(b[8:]), Local: binary.BigEndian.Uint32(d),
		Private: d[p[0]:p[1]:p[1]]}
	switch kind {
	case CMReq:
		m.Req = parseCMRequest(d)
	case CMSIDRReq, CMSIDRRep:
		m.SIDR = parseCMService(d, kind)
	default:
		m.Remote = binary.BigEndian.Uint32(d[4:])
	}
	switch kind {
	case CMRep:
		m.Rep = parseCMReply(d)
	case CMMRA:
		m.About, m.Service = CMAbout(d[8]>>6), d[9]>>3
	case CMRej:
		m.About, m.Reason = CMAbout(d[8]>>6), binary.BigEndian.Uint16(d[10:])
	case CMDReq:
		m.QPN = get24(d[8:])
	}
	return m, nil
}

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
