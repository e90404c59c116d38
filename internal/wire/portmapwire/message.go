// Package portmapwire is the codec of the SDP Port Mapper's messages, of chapter 7 of
// draft-pinkerton-iwarp-sdp-01. It does no input or output, and keeps no state. Package portmap has
// the client and the server.
package portmapwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"

	"viaduct/internal/fault"
)

// [SDP-7.3-1]

// MessageLen is the length in bytes of every message.
const MessageLen = 48

// [SDP-7.3.1.2-1]

// A Type is one of the four message types.
type Type uint8

// These are the four message types.
const ( // [SDP 7.3.1.2]
	Request Type = 0 // PMReq, client to server
	Accept  Type = 1 // PMAccept, server to client
	Ack     Type = 2 // PMAck, client to server
	Deny    Type = 3 // PMDeny, server to client
)

// String returns the name the draft uses.
func (t Type) String() string {
	switch t {
	case Request:
		return "PMReq"
	case Accept:
		return "PMAccept"
	case Ack:
		return "PMAck"
	case Deny:
		return "PMDeny"
	}
	return fmt.Sprintf("Type(%#x)", uint8(t))
}

// These are errors of Parse. For a short message the error is io.ErrUnexpectedEOF.
var (
	ErrVersion   = errors.New("portmap: unknown version")
	ErrIPVersion = errors.New("portmap: IP version is neither 4 nor 6")
)

// A Message is a datagram of the protocol.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---+---+-------+---------------+-------------------------------+
//	|Ver|MT |  IPV  |    PmTime     |           reserved            |
//	+---+---+-------+---------------+-------------------------------+
//	|            ApPort             |            CpPort             |
//	+-------------------------------+-------------------------------+
//	|                     AssocHandle, 64 bits                      |
//	+---------------------------------------------------------------+
//	|                      CpIPAddr, 128 bits                       |
//	+---------------------------------------------------------------+
//	|                      ApIPAddr, 128 bits                       |
//	+---------------------------------------------------------------+
//
// Both addresses are of the same family. In the figure the most significant bit is at the left.
type Message struct { // [SDP 7.3] [D-01]
	Type        Type
	PmTime      uint8          // lifetime of an answer, in the form of portmap.PmTime; zero in all messages except PMAccept
	AssocHandle uint64         // identifies the transaction of this client
	Cp          netip.AddrPort // address from which the client connects
	Ap          netip.AddrPort // address of the service, requested or granted

	// AssocHandle [SDP-7.3.1.8-2], Cp [SDP-7.3.1.7-1] [SDP-7.3.1.9-1], Ap [SDP-7.3.1.6-1]
	// [SDP-7.3.1.10-1].
}

// Append appends the MessageLen bytes of m to b. Append panics unless both addresses are valid and
// of the same family, as in every message from Parse. An IPv4 address mapped into IPv6 counts as an
// IPv6 address, so that an answer always repeats the IPV and the addresses of the request. Zones
// are left out.
func (m Message) Append(b []byte) []byte {
	cp, ap := m.Cp.Addr(), m.Ap.Addr()
	if !cp.IsValid() || !ap.IsValid() || cp.Is4() != ap.Is4() {
		panic(fmt.Sprintf("portmap: addresses %v and %v are not of one family", cp, ap))
	}
	ipv := byte(6)
	if cp.Is4() {
		ipv = 4 // [SDP-7.3.1.3-1] [SDP-7.4-17]
	}
	reserved := byte(0)
	switch {
	case fault.On("portmap-handle") && m.Type != Request:
		m.AssocHandle++
	case fault.On("portmap-reserved"):
		reserved = 1
	case fault.On("portmap-port") && m.Type != Request:
		m.Cp = netip.AddrPortFrom(cp, m.Cp.Port()+1)
	}
	// Version 0 in the top two bits [SDP-7.3.1.1-1], reserved bits zero [SDP-7.3.1.5-1].
	b = append(b, byte(m.Type&3)<<4|ipv, m.PmTime, reserved, 0)
	b = binary.BigEndian.AppendUint16(b, m.Ap.Port())
	b = binary.BigEndian.AppendUint16(b, m.Cp.Port())
	b = binary.BigEndian.AppendUint64(b, m.AssocHandle)
	b = appendAddr(b, cp) // [SDP-7.4-22]
	return appendAddr(b, ap)
}

// appendAddr writes 16 bytes; an IPv4 address leads and zeros follow. [SDP-7.3.1.3-2]
func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		b = append(b, v[:]...)
		return append(b, make([]byte, 12)...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

// Parse decodes the message at the front of b. It ignores bytes beyond MessageLen, reserved bits,
// and the unused part of an IPv4 address field. The error is io.ErrUnexpectedEOF if b is short, and
// ErrVersion or ErrIPVersion if the version or IPV is unknown.
func Parse(b []byte) (Message, error) { // [D-61] [SDP-7.3.1.5-2] [SDP-7.3.1.3-3]
	if len(b) < MessageLen {
		return Message{}, fmt.Errorf("portmap: %d bytes, want %d: %w", len(b), MessageLen, io.ErrUnexpectedEOF)
	}
	if v := b[0] >> 6; v != 0 && !fault.On("portmap-version-unchecked") {
		return Message{}, fmt.Errorf("%w: %d, want 0", ErrVersion, v)
	}
	ipv := b[0] & 0xf
	if ipv != 4 && ipv != 6 {
		return Message{}, fmt.Errorf("%w: %d", ErrIPVersion, ipv)
	}
	return Message{
		Type:        Type(b[0] >> 4 & 3),
		PmTime:      b[1],
		AssocHandle: binary.BigEndian.Uint64(b[8:]),
		Cp:          netip.AddrPortFrom(parseAddr(b[16:], ipv), binary.BigEndian.Uint16(b[6:])),
		Ap:          netip.AddrPortFrom(parseAddr(b[32:], ipv), binary.BigEndian.Uint16(b[4:])),
	}, nil
}

func parseAddr(b []byte, ipv byte) netip.Addr {
	if ipv == 4 {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b)) // all 128 bits are used [SDP-7.3.1.3-4]
}

// LogValue describes m for logs and for decoders.
func (m Message) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("type", m.Type.String()),
		slog.String("handle", fmt.Sprintf("%#016x", m.AssocHandle)),
		slog.String("cp", m.Cp.String()),
		slog.String("ap", m.Ap.String()),
		slog.Int("pmtime", int(m.PmTime)),
	)
}
