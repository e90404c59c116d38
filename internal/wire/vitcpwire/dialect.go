package vitcpwire

import "errors"

// Version is the value of the version field. Version is not zero, so that zeroed memory does not
// look like a segment. [V-01] [VIT-3.1-2]
const Version = 1

// Port is the default TCP port of VI/TCP. No port was ever assigned.
const Port = 3936

// These are errors of the package's parsers. For short input the parsers return
// io.ErrUnexpectedEOF.
var (
	ErrVersion = errors.New("vitcpwire: unknown version")
	ErrType    = errors.New("vitcpwire: unknown message type")
	ErrLength  = errors.New("vitcpwire: segment length shorter than its headers")
)

// A Dialect defines the numbers and choices the draft leaves open, because another implementation
// may use different values. The zero value is the project's dialect. Any other value must be
// configured at both ends.
type Dialect struct {
	// TypeOffset is added to the number of each of the draft's nine types on the wire. It is 1 for
	// a peer whose types are counted from 1. The maximum is 22, so that no type collides with the
	// Disconnect extension. [V-02]
	TypeOffset uint8

	// BareReadResponse means that Read Responses have no RDMA header. [V-23]
	BareReadResponse bool
}

// Valid reports whether TypeOffset is in range.
func (d Dialect) Valid() bool { return d.TypeOffset <= uint8(Disconnect)-draftTypes }

// encodeType returns the five bits of type t on the wire.
func (d Dialect) encodeType(t Type) uint8 {
	if t < draftTypes {
		return uint8(t) + d.TypeOffset
	}
	return uint8(t)
}

// decodeType is the inverse of encodeType. ok is false for an unknown type.
func (d Dialect) decodeType(v uint8) (t Type, ok bool) {
	if t = Type(v - d.TypeOffset); t < draftTypes {
		return t, true
	}
	t = Type(v)
	return t, t >= draftTypes && t.Known()
}

// HeaderLen returns the length in bytes of all headers of a segment of type t. It is the minimum of
// the segment's Segment Length.
func (d Dialect) HeaderLen(t Type) int {
	switch {
	case t.HasCE():
		return HeaderLen + CELen
	case t == ReadResponse && d.BareReadResponse:
		return HeaderLen
	case t.HasRDMA():
		return HeaderLen + RDMALen
	}
	return HeaderLen
}

// MaxPayload returns the largest payload in bytes of a segment of type t. The limit is the Segment
// Length, of 16 bits and including the headers. [V-07] [VIT-3.1-7]
func (d Dialect) MaxPayload(t Type) int { return MaxSegment - d.HeaderLen(t) }
