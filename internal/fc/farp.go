package fc

import (
	"encoding/binary"
	"io"
	"net/netip"
)

// FARPLen is the length in bytes of a FARP-REQ or FARP-REPLY payload.
const FARPLen = 76

// These are the Match Address Code Points of FARP (RFC 2625, 5.4). All set bits must match.
const (
	FARPMatchPN = 1 // support required
	FARPMatchNN = 2
	FARPMatchIP = 4
)

// These are the Responder flags of FARP.
const (
	FARPInitPLOGI = 0x01
	FARPInitReply = 0x02
)

// A FARP is the payload of FARP-REQ and FARP-REPLY. [FCVI 7.5]
//
//	 0 |   command   |      0      |      0      |      0      |
//	 4 | code points |           Requester N_Port_ID           |
//	 8 |    flags    |           Responder N_Port_ID           |
//	12 |  Requester Port_Name, Node_Name; Responder the same (8 bytes each)
//	44 |  Requester IP (16)
//	60 |  Responder IP (16)
//
// The code byte comes first, as in the body of RFC 2625 and in every known implementation; appendix
// E.4.2 of the RFC draws it last. [FCVI-7.5-1] [FCVI-7.5-2]
type FARP struct {
	Cmd                    ELSCmd
	Match                  uint8
	Flags                  uint8
	ReqID, RespID          Addr
	ReqPortName, ReqNode   WWN
	RespPortName, RespNode WWN
	ReqIP, RespIP          [16]byte // IPv4 in the last four bytes
}

// Append appends the FARPLen bytes of f to b.
func (f *FARP) Append(b []byte) []byte {
	b = AppendCmd(b, f.Cmd)
	b = append(b, f.Match, byte(f.ReqID>>16), byte(f.ReqID>>8), byte(f.ReqID))
	b = append(b, f.Flags, byte(f.RespID>>16), byte(f.RespID>>8), byte(f.RespID))
	for _, w := range [...]WWN{f.ReqPortName, f.ReqNode, f.RespPortName, f.RespNode} {
		b = binary.BigEndian.AppendUint64(b, uint64(w))
	}
	b = append(b, f.ReqIP[:]...)
	return append(b, f.RespIP[:]...)
}

// ParseFARP decodes a FARP-REQ or FARP-REPLY payload.
func ParseFARP(b []byte) (f FARP, n int, err error) {
	if len(b) < FARPLen {
		return f, 0, io.ErrUnexpectedEOF
	}
	f.Cmd, f.Match, f.Flags = ELSCmd(b[0]), b[4], b[8]
	f.ReqID, f.RespID = GetAddr(b[5:]), GetAddr(b[9:])
	f.ReqPortName = WWN(binary.BigEndian.Uint64(b[12:]))
	f.ReqNode = WWN(binary.BigEndian.Uint64(b[20:]))
	f.RespPortName = WWN(binary.BigEndian.Uint64(b[28:]))
	f.RespNode = WWN(binary.BigEndian.Uint64(b[36:]))
	copy(f.ReqIP[:], b[44:])
	copy(f.RespIP[:], b[60:])
	return f, FARPLen, nil
}

// FARPIP returns a in the 128-bit form of FARP and of the directory. An IPv4 address is in the last
// four bytes, after twelve zero bytes. An IPv4-mapped IPv6 address has the same form. [FCVI 7.2]
func FARPIP(a netip.Addr) (ip [16]byte) {
	a = a.Unmap()
	if a.Is4() {
		v4 := a.As4()
		copy(ip[12:], v4[:])
		return ip
	}
	if a.Is6() {
		ip = a.As16()
	}
	return ip
}

// matches reports whether a request with these code points searches for a port with the given names
// and addresses. It returns the matching address. Code point 0 is reserved and matches nothing.
// [FCVI-7.5-3]
func (f *FARP) matches(port, node WWN, ips [][16]byte) (ip [16]byte, ok bool) {
	m := f.Match & 7
	if m == 0 || f.Match&^7 != 0 {
		return ip, false
	}
	if m&FARPMatchPN != 0 && f.RespPortName != port || m&FARPMatchNN != 0 && f.RespNode != node {
		return ip, false
	}
	if m&FARPMatchIP == 0 {
		if len(ips) > 0 {
			ip = ips[0]
		}
		return ip, true
	}
	for _, a := range ips {
		if a == f.RespIP {
			return a, true
		}
	}
	return ip, false
}
