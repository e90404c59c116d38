package iu

import (
	"encoding/binary"
	"fmt"
	"io"

	"viaduct/internal/fault"
)

// NoTimeout in a CONNECT_RQST lets the originator wait without limit.
const NoTimeout = 0xFFFFFFFF

// A ConnectPayload is the payload of CONNECT_RQST. [FCVI-6.8-1]
type ConnectPayload struct {
	Version      uint8
	Handle       uint32 // the originator's FCVI_HANDLE
	InitialMsgID MsgID  // id of the first message from originator to responder
	Timeout      uint32 // remaining time in milliseconds; NoTimeout means no limit
	Local        NetAddress
	Remote       NetAddress
	Attributes   Attributes
	Security     []byte // not interpreted by FC-VI; at most MaxSecurity bytes
}

// MaxSecurity is the maximum length of the security information in a set-up payload. The limit
// keeps the payload within one frame.
const MaxSecurity = 1600

// Append appends p to b: ConnectRqstLen bytes and the security information, cut to MaxSecurity
// bytes.
func (p *ConnectPayload) Append(b []byte) []byte {
	sec := p.Security[:min(len(p.Security), MaxSecurity)]
	b = append(b, p.Version, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ConnectRqstLen+len(sec)))
	b = binary.BigEndian.AppendUint32(b, p.Handle)
	b = binary.BigEndian.AppendUint32(b, uint32(p.InitialMsgID))
	b = binary.BigEndian.AppendUint32(b, p.Timeout)
	b = p.Local.Append(b)
	b = p.Remote.Append(b)
	b = p.Attributes.Append(b)
	return append(b, sec...)
}

// ParseConnectRqst decodes the payload of a CONNECT_RQST. On an error p.Handle is set if b has at
// least 8 bytes, so that a rejection can be addressed. Bytes after the fixed part become the
// security information. [FCVI-6.9-2] [FCVI-6.9-3]
//
// Errors: io.ErrUnexpectedEOF, ErrVersion, ErrFormat.
func ParseConnectRqst(b []byte) (p ConnectPayload, n int, err error) {
	if len(b) >= 8 {
		p.Version, p.Handle = b[0], binary.BigEndian.Uint32(b[4:])
	}
	n, err = checkPayload(b, ConnectRqstLen)
	if err != nil {
		return p, 0, err
	}
	p.InitialMsgID = MsgID(binary.BigEndian.Uint32(b[8:]))
	p.Timeout = binary.BigEndian.Uint32(b[12:])
	if p.Local, _, err = ParseNetAddress(b[16:]); err != nil {
		return p, 0, err
	}
	if p.Remote, _, err = ParseNetAddress(b[16+NetAddressLen:]); err != nil {
		return p, 0, err
	}
	if p.Attributes, _, err = ParseAttributes(b[16+2*NetAddressLen:]); err != nil {
		return p, 0, err
	}
	p.Security = security(b[ConnectRqstLen:n])
	return p, n, nil
}

// An AcceptPayload is the payload of an accepting CONNECT_RESP1. [FCVI-6.9-1]
type AcceptPayload struct {
	Version      uint8
	Handle       uint32 // the responder's FCVI_HANDLE
	InitialMsgID MsgID  // id of the first message from responder to originator
	Local        NetAddress
	Attributes   Attributes
	Security     []byte // same rules as in ConnectPayload
}

// Append appends p to b: ConnectResp1Len bytes and the security information, cut to MaxSecurity
// bytes.
func (p *AcceptPayload) Append(b []byte) []byte {
	sec := p.Security[:min(len(p.Security), MaxSecurity)]
	b = append(b, p.Version, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ConnectResp1Len+len(sec)))
	b = binary.BigEndian.AppendUint32(b, p.Handle)
	b = binary.BigEndian.AppendUint32(b, uint32(p.InitialMsgID))
	b = append(b, 0, 0, 0, 0)
	b = p.Local.Append(b)
	b = p.Attributes.Append(b)
	return append(b, sec...)
}

// ParseConnectResp1 decodes the payload of an accepting CONNECT_RESP1, with the
// errors of ParseConnectRqst.
func ParseConnectResp1(b []byte) (p AcceptPayload, n int, err error) {
	if len(b) >= 8 {
		p.Version, p.Handle = b[0], binary.BigEndian.Uint32(b[4:])
	}
	n, err = checkPayload(b, ConnectResp1Len)
	if err != nil {
		return p, 0, err
	}
	p.InitialMsgID = MsgID(binary.BigEndian.Uint32(b[8:]))
	if p.Local, _, err = ParseNetAddress(b[16:]); err != nil {
		return p, 0, err
	}
	if p.Attributes, _, err = ParseAttributes(b[16+NetAddressLen:]); err != nil {
		return p, 0, err
	}
	p.Security = security(b[ConnectResp1Len:n])
	return p, n, nil
}

// security returns a copy of the bytes after the fixed part of a payload, or nil if there are none.
func security(b []byte) []byte {
	return append([]byte(nil), b[:min(len(b), MaxSecurity)]...)
}

// checkPayload checks the version of a set-up payload, and the length: at least want bytes. It
// returns the value of the length field.
func checkPayload(b []byte, want int) (int, error) {
	if len(b) < 4 {
		return 0, io.ErrUnexpectedEOF
	}
	if b[0] != ProjectVersion && !fault.On("fcvi-version-unchecked") {
		return 0, fmt.Errorf("%w: %d", ErrVersion, b[0])
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if len(b) < want {
		return 0, io.ErrUnexpectedEOF
	}
	if n < want || n > len(b) {
		return 0, fmt.Errorf("%w: length field %d in a payload of %d bytes", ErrFormat, n, len(b))
	}
	return n, nil
}
