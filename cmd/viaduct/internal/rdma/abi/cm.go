package abi

import (
	"net/netip"
	"strconv"
)

// A CMCommand is the number of an rdma_cm command.
type CMCommand uint32

// The commands.
const (
	CMCreateID CMCommand = iota
	CMDestroyID
	CMBindIP
	CMResolveIP
	CMResolveRoute
	CMQueryRoute
	CMConnect
	CMListen
	CMAccept
	CMReject
	CMDisconnect
	CMInitQPAttr
	CMGetEvent
	CMGetOption
	CMSetOption
	CMNotify
	CMJoinIPMcast
	CMLeaveMcast
	CMMigrateID
	CMQuery
	CMBind
	CMResolveAddr
	CMJoinMcast
	CMResolveIBService
	CMWriteEvent
	numCMCommands
)

var cmNames = [numCMCommands]string{"create_id", "destroy_id", "bind_ip", "resolve_ip",
	"resolve_route", "query_route", "connect", "listen",
	"accept", "reject", "disconnect", "init_qp_attr", "get_event", "get_option", "set_option", "notify", "join_ip_mcast", "leave_mcast",
	"migrate_id", "query", "bind", "resolve_addr", "join_mcast", "resolve_ib_service", "write_cm_event"}

// String returns the kernel's name of the command.
func (c CMCommand) String() string {
	if c < numCMCommands {
		return cmNames[c]
	}
	return "command"
}

// A CMRequest is an rdma_cm command.
type CMRequest struct {
	Command CMCommand
	Body    Body
	Out     int // bytes available for the response
}

// ParseCM decodes bytes written to an rdma_cm file. Reads beyond a body shorter than the structure
// return zeros. The error is ErrLength, also for an unknown command.
func ParseCM(b []byte) (r CMRequest, err error) {
	if len(b) < 8 {
		return r, ErrLength
	}
	h := Body(b)
	r.Command, r.Out = CMCommand(h.U32(0)), int(h.U16(6))
	in := int(h.U16(4))
	if r.Command >= numCMCommands || 8+in > len(b) {
		return r, ErrLength
	}
	r.Body = h[8 : 8+in : 8+in]
	return r, nil
}

// Lengths in bytes of responses of rdma_cm.
const (
	QueryRouteLen = 208
	QPAttrLen     = 144
	EventLen      = 336
	// eventLeast is the room the kernel requires: all of the structure except a reserved word and
	// the fields of newer versions.
	eventLeast = 324
)

// Address families.
const (
	afInet  = 2
	afInet6 = 10
)

// ParseAddr decodes a sockaddr_in or sockaddr_in6. valid is false for other families. The zone of a
// link-local address is the number of an interface.
func ParseAddr(b Body) (a netip.AddrPort, valid bool) {
	port := uint16(b.U8(2))<<8 | uint16(b.U8(3))
	switch b.U16(0) {
	case afInet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b.Bytes(4, 4))), port), true
	case afInet6:
		ip := netip.AddrFrom16([16]byte(b.Bytes(8, 16)))
		if scope := b.U32(24); scope != 0 && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(ip, port), true
	}
	return a, false
}

// PutAddr writes an address as a sockaddr of the address's family, or nothing for the zero address.
// b must have at least 28 bytes. The zone of the address, if any, is the number of an interface.
func PutAddr(b Body, a netip.AddrPort) {
	switch {
	case !a.IsValid():
		return
	case a.Addr().Is4():
		b.Put16(0, afInet)
		ip := a.Addr().As4()
		copy(b[4:], ip[:])
	default:
		b.Put16(0, afInet6)
		ip := a.Addr().As16()
		copy(b[8:], ip[:])
		scope, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32)
		b.Put32(24, uint32(scope))
	}
	b[2], b[3] = byte(a.Port()>>8), byte(a.Port())
}

// MaxPrivate is how many bytes of private data fit into a ConnParam.
const MaxPrivate = 255

// A ConnParam holds the connection parameters in connect, accept and events.
type ConnParam struct {
	QP       uint32
	Private  []byte
	SRQ      bool
	IRD, ORD uint8 // responder_resources, initiator_depth
	Retry    uint8 // retry_count, of RoCE
	RNRRetry uint8 // rnr_retry_count, of RoCE
	Valid    bool
}

const connParamLen = 272

// ParseConnParam decodes a parameter block. Private refers to b.
func ParseConnParam(b Body) ConnParam {
	n := int(b.U8(264))
	return ConnParam{QP: b.U32(0), Private: b.Bytes(8, n), SRQ: b.U8(265) != 0, IRD: b.U8(266), ORD: b.U8(267),
		Retry: b.U8(269), RNRRetry: b.U8(270), Valid: b.U8(271) != 0}
}

func (p *ConnParam) put(b Body) {
	b.Put32(0, p.QP)
	n := copy(b[8:8+MaxPrivate], p.Private)
	b.Put8(264, uint8(n))
	if p.SRQ {
		b.Put8(265, 1)
	}
	b.Put8(266, p.IRD)
	b.Put8(267, p.ORD)
	b.Put8(269, p.Retry)
	b.Put8(270, p.RNRRetry)
}

// A CMEventType is the type of an event.
type CMEventType uint32

// The types.
const (
	EvAddrResolved   CMEventType = 0
	EvAddrError      CMEventType = 1
	EvRouteResolved  CMEventType = 2
	EvRouteError     CMEventType = 3
	EvConnectRequest CMEventType = 4
	EvConnectReply   CMEventType = 5 // only RoCE: the active side must answer with accept
	EvConnectError   CMEventType = 6
	EvUnreachable    CMEventType = 7
	EvRejected       CMEventType = 8
	EvEstablished    CMEventType = 9
	EvDisconnected   CMEventType = 10
	EvDeviceRemoval  CMEventType = 11
	EvMulticastJoin  CMEventType = 12
	EvTimewaitExit   CMEventType = 15
	EvUser           CMEventType = 18 // written by the program itself
	EvInternal       CMEventType = 19 // written by librdmacm
)

// A CMEvent is an event.
type CMEvent struct {
	UID    uint64
	ID     uint32
	Type   CMEventType
	Status int32 // negative error number, or the reason of a rejection
	Param  ConnParam
	UD     *UDParam // set for datagrams, instead of Param
	Arg    uint64   // set for events of the types EvUser and EvInternal, instead of Param
}

// Put encodes the event for a response of out bytes. ok is false if the event does not fit.
func (e *CMEvent) Put(out int) (b Body, ok bool) {
	if out < eventLeast {
		return nil, false
	}
	b = make(Body, EventLen)
	b.Put64(0, e.UID)
	b.Put32(8, e.ID)
	b.Put32(12, uint32(e.Type))
	b.Put32(16, uint32(e.Status))
	switch {
	case e.UD != nil:
		e.UD.put(b[20:])
	case e.Type == EvUser, e.Type == EvInternal:
		b.Put64(20, e.Arg)
	default:
		e.Param.put(b[20 : 20+connParamLen])
	}
	return b[:min(out, EventLen)], true
}

// QPAttr returns the response of init_qp_attr for a state. ok is false if the state cannot be
// entered.
func QPAttr(s State) (b Body, ok bool) {
	b = make(Body, QPAttrLen)
	b.Put32(4, uint32(s))
	switch s {
	case Init, RTR:
		b.Put32(0, QPState|QPAccessFlags|QPPort)
		b.Put32(36, AccessLocalWrite|AccessRemoteWrite|AccessRemoteRead)
		b.Put8(133, 1)
	case RTS:
		b.Put32(0, QPState|QPPort)
		b.Put8(133, 1)
	default:
		return nil, false
	}
	return b, true
}
