package ib

import (
	"encoding/binary"
	"net/netip"
)

// A CMRequest holds the fields of a REQ: the sender's queue pair, and the parameters of the
// connection. [ROCE-CM-3]
type CMRequest struct {
	ServiceID uint64
	GUID      uint64 // identifier of the sender's adapter
	QPN       uint32
	PSN       PSN

	Responder, Initiator uint8 // Reads and atomic operations: how many the sender serves, and how many it sends
	Retries, RNRRetries  uint8 // 0 to 7
	SRQ                  bool
	Transport            uint8 // 0 RC, 1 UC
	PKey                 uint16
	MTU                  uint8 // code of the path MTU

	ResponseTime, LocalTime uint8 // codes of the times in which the receiver and the sender answer
	MaxRetries              uint8 // how often a message of connection management is retransmitted, 0 to 15
	AckTimeout              uint8 // code of the ACK timeout

	Source, Destination netip.Addr // GIDs of the path
	HopLimit            uint8
	TrafficClass        uint8
}

// These are the offsets in bytes of the fields of a REQ, counted from the end of the header.
const (
	reqService   = 8
	reqGUID      = 16
	reqQPN       = 32
	reqTimes     = 43
	reqPSN       = 44
	reqPKey      = 48
	reqSourceLID = 52
	reqSource    = 56
	reqDest      = 72
	reqPath      = 88
	reqHops      = 93
	permissive   = 0xffff // LID value that means none
)

func (r *CMRequest) put(d []byte) {
	binary.BigEndian.PutUint64(d[reqService:], r.ServiceID)
	binary.BigEndian.PutUint64(d[reqGUID:], r.GUID)
	put24(d[reqQPN:], r.QPN)
	d[35], d[39] = r.Responder, r.Initiator
	d[reqTimes] = r.ResponseTime<<3 | r.Transport&3<<1
	put24(d[reqPSN:], uint32(r.PSN))
	d[47] = r.LocalTime<<3 | r.Retries&7
	binary.BigEndian.PutUint16(d[reqPKey:], r.PKey)
	d[50] = r.MTU<<4 | r.RNRRetries&7
	d[51] = r.MaxRetries << 4
	if r.SRQ {
		d[51] |= 8
	}
	binary.BigEndian.PutUint16(d[reqSourceLID:], permissive)
	binary.BigEndian.PutUint16(d[reqSourceLID+2:], permissive)
	putGID(d[reqSource:], r.Source)
	putGID(d[reqDest:], r.Destination)
	const rate10 = 3 // Gb/s
	d[91] = rate10
	d[92], d[reqHops] = r.TrafficClass, r.HopLimit
	d[95] = r.AckTimeout << 3
}

func parseCMRequest(d []byte) CMRequest {
	return CMRequest{
		ServiceID: binary.BigEndian.Uint64(d[reqService:]), GUID: binary.BigEndian.Uint64(d[reqGUID:]),
		QPN: get24(d[reqQPN:]), PSN: PSN(get24(d[reqPSN:])), Responder: d[35], Initiator: d[39],
		Retries: d[47] & 7, RNRRetries: d[50] & 7, SRQ: d[51]&8 != 0, Transport: d[reqTimes] >> 1 & 3,
		PKey: binary.BigEndian.Uint16(d[reqPKey:]), MTU: d[50] >> 4,
		ResponseTime: d[reqTimes] >> 3, LocalTime: d[47] >> 3, MaxRetries: d[51] >> 4, AckTimeout: d[95] >> 3,
		Source: gid(d[reqSource:]), Destination: gid(d[reqDest:]), HopLimit: d[reqHops], TrafficClass: d[92],
	}
}

// putGID writes an address as a GID. [ROCE-NET-7]
func putGID(b []byte, a netip.Addr) {
	if a.IsValid() {
		g := a.As16()
		copy(b, g[:])
	}
}

func gid(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }

// A CMReply holds the fields of a REP: the queue pair of the responder. [ROCE-CM-3]
type CMReply struct {
	QPN                  uint32
	PSN                  PSN
	Responder, Initiator uint8
	RNRRetries           uint8
	SRQ                  bool
	GUID                 uint64
}

func (r *CMReply) put(d []byte) {
	put24(d[12:], r.QPN)
	put24(d[20:], uint32(r.PSN))
	d[24], d[25] = r.Responder, r.Initiator
	d[27] = r.RNRRetries << 5
	if r.SRQ {
		d[27] |= 1 << 4
	}
	binary.BigEndian.PutUint64(d[28:], r.GUID)
}

func parseCMReply(d []byte) CMReply {
	return CMReply{QPN: get24(d[12:]), PSN: PSN(get24(d[20:])), Responder: d[24], Initiator: d[25],
		RNRRetries: d[27] >> 5, SRQ: d[27]>>4&1 != 0, GUID: binary.BigEndian.Uint64(d[28:])}
}

// A CMService holds the fields of a SIDR request and of the reply: the requested service, and the
// queue pair for its datagrams. [ROCE-CM-3]
type CMService struct {
	ServiceID uint64
	PKey      uint16 // in a request
	Status    uint8  // in a reply; 0 if the service exists
	QPN       uint32 // in a reply
	QKey      uint32 // in a reply
}

func (s *CMService) put(d []byte, k CMKind) {
	if k == CMSIDRReq {
		binary.BigEndian.PutUint16(d[4:], s.PKey)
		binary.BigEndian.PutUint64(d[8:], s.ServiceID)
		return
	}
	d[4] = s.Status
	put24(d[8:], s.QPN)
	binary.BigEndian.PutUint64(d[12:], s.ServiceID)
	binary.BigEndian.PutUint32(d[20:], s.QKey)
}

func parseCMService(d []byte, k CMKind) CMService {
	if k == CMSIDRReq {
		return CMService{PKey: binary.BigEndian.Uint16(d[4:]), ServiceID: binary.BigEndian.Uint64(d[8:])}
	}
	return CMService{Status: d[4], QPN: get24(d[8:]), ServiceID: binary.BigEndian.Uint64(d[12:]),
		QKey: binary.BigEndian.Uint32(d[20:])}
}

// IPServiceID returns the service of a port in a port space of rdma_cm. [ROCE-CM-4]
func IPServiceID(space, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// IPHeaderLen is the length in bytes of an IPHeader. The header precedes the private data of a
// request between IP addresses. [ROCE-CM-5]
const IPHeaderLen = 36

// An IPHeader holds the IP addresses of a request. [ROCE-CM-5]
type IPHeader struct {
	Source      netip.AddrPort
	Destination netip.Addr // of the same family as Source
}

// Append appends the IPHeaderLen bytes of h to b.
func (h IPHeader) Append(b []byte) []byte {
	version := byte(6)
	if h.Source.Addr().Is4() {
		version = 4
	}
	b = append(b, 0, version<<4)
	b = binary.BigEndian.AppendUint16(b, h.Source.Port())
	for _, a := range []netip.Addr{h.Source.Addr(), h.Destination} {
		if version == 4 {
			b = append(b, make([]byte, 12)...)
			b = append(b, a.AsSlice()...)
		} else {
			g := a.As16()
			b = append(b, g[:]...)
		}
	}
	return b
}

// ParseIPHeader decodes the header at the front of the private data of a request. ok is false if
// the private data does not begin with such a header.
func ParseIPHeader(b []byte) (h IPHeader, ok bool) {
	if len(b) < IPHeaderLen || b[0] != 0 {
		return h, false
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch b[1] >> 4 {
	case 4:
		return IPHeader{netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), port), netip.AddrFrom4([4]byte(b[32:]))},
			true
	case 6:
		return IPHeader{netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[4:])), port), netip.AddrFrom16([16]byte(b[20:]))}, true
	}
	return h, false
}
