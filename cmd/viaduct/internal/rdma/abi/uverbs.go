package abi

import (
	"errors"
	"fmt"
)

// A Command is the number of a uverbs command. Extended marks commands with the longer header.
type Command uint32

// The commands.
const (
	GetContext        Command = 0
	QueryDevice       Command = 1
	QueryPort         Command = 2
	AllocPD           Command = 3
	DeallocPD         Command = 4
	CreateAH          Command = 5
	DestroyAH         Command = 8
	RegMR             Command = 9
	DeregMR           Command = 13
	AllocMW           Command = 14
	DeallocMW         Command = 16
	CreateCompChannel Command = 17
	CreateCQ          Command = 18
	ResizeCQ          Command = 19
	DestroyCQ         Command = 20
	ReqNotifyCQ       Command = 23
	CreateQP          Command = 24
	QueryQP           Command = 25
	ModifyQP          Command = 26
	DestroyQP         Command = 27
	PostSend          Command = 28
	AttachMcast       Command = 30
	DetachMcast       Command = 31
	CreateSRQ         Command = 32
	ModifySRQ         Command = 33
	QuerySRQ          Command = 34
	DestroySRQ        Command = 35
	CreateXSRQ        Command = 39

	Extended      Command = 0x80000000
	QueryDeviceEx         = Extended | QueryDevice
	CreateCQEx            = Extended | CreateCQ
	CreateQPEx            = Extended | CreateQP
)

// A layout holds the least lengths of a command and the response.
type layout struct {
	name     string
	in       int // bytes of the body, without headers
	out      int // bytes of the core's response
	response bool
}

var layouts = map[Command]layout{
	GetContext:        {"get_context", 8, 8, true},
	QueryDevice:       {"query_device", 8, QueryDeviceLen, true},
	QueryPort:         {"query_port", 16, QueryPortLen, true},
	AllocPD:           {"alloc_pd", 8, 4, true},
	DeallocPD:         {"dealloc_pd", 4, 0, false},
	RegMR:             {"reg_mr", 40, 12, true},
	DeregMR:           {"dereg_mr", 4, 0, false},
	CreateCompChannel: {"create_comp_channel", 8, 4, true},
	CreateCQ:          {"create_cq", 32, 8, true},
	DestroyCQ:         {"destroy_cq", 12, 8, true},
	CreateQP:          {"create_qp", 56, 32, true},
	QueryQP:           {"query_qp", 16, QueryQPLen, true},
	ModifyQP:          {"modify_qp", 112, 0, false},
	DestroyQP:         {"destroy_qp", 12, 4, true},
	PostSend:          {"post_send", 24, 4, true},
	CreateSRQ:         {"create_srq", 32, 16, true},
	ModifySRQ:         {"modify_srq", 16, 0, false},
	QuerySRQ:          {"query_srq", 16, 16, true},
	DestroySRQ:        {"destroy_srq", 12, 4, true},
	QueryDeviceEx:     {"ex_query_device", 8, 0, true},
	CreateAH:          {"create_ah", 56, 4, true},
	DestroyAH:         {"destroy_ah", 4, 0, false},
	AllocMW:           {"alloc_mw", 16, 8, true},
	DeallocMW:         {"dealloc_mw", 4, 0, false},
	ResizeCQ:          {"resize_cq", 16, 8, true},
	ReqNotifyCQ:       {"req_notify_cq", 8, 0, false},
	AttachMcast:       {"attach_mcast", 24, 0, false},
	DetachMcast:       {"detach_mcast", 24, 0, false},
	CreateXSRQ:        {"create_xsrq", 48, 16, true},
	CreateCQEx:        {"ex_create_cq", 32, 16, true},
	CreateQPEx:        {"ex_create_qp", 56, 40, true},

	// These exist only as ioctl methods.
	OpenContext:   {"open_context", 0, 12, false},
	AllocAsync:    {"alloc_async", 0, 4, false},
	QueryGID:      {"query_gid", 12, GIDEntryLen, false},
	QueryGIDTable: {"query_gid_table", 12, 8, false},
}

// String returns the kernel's name of the command.
func (c Command) String() string {
	if l, ok := layouts[c]; ok {
		return l.name
	}
	return fmt.Sprintf("command %#x", uint32(c))
}

// Lengths in bytes of responses.
const (
	QueryDeviceLen   = 176
	QueryDeviceExLen = 304
	QueryPortLen     = 40
	QueryQPLen       = 128
	GIDEntryLen      = 32
)

const (
	headerLen   = 8
	exHeaderLen = 16 // bytes of the second header, after the first one

	// MaxRequest bounds how many bytes of a command are read.
	MaxRequest = 4096
)

// Errors of requests; the dispatcher turns each into the kernel's error number.
var (
	ErrLength  = errors.New("abi: the lengths in the header are not those of the command") // EINVAL
	ErrShort   = errors.New("abi: the command or its response is too short")               // ENOSPC
	ErrCommand = errors.New("abi: no such command")                                        // EOPNOTSUPP
)

// A Request is a command.
type Request struct {
	Command  Command
	Body     Body   // begins with the address of the response, if there is one
	Driver   Body   // the provider's part after the body
	Response uint64 // address, 0 for none
	Room     int    // bytes for the response, including the provider's part
}

// ParseRequest decodes bytes written to a uverbs file. The request refers to b.
func ParseRequest(b []byte) (r Request, err error) {
	if len(b) < headerLen {
		return r, ErrLength
	}
	h := Body(b)
	r.Command = Command(h.U32(0))
	in, out := int(h.U16(4)), int(h.U16(6))
	if r.Command&^(Extended|0xff) != 0 {
		return r, ErrLength
	}
	l, known := layouts[r.Command]
	if r.Command&Extended != 0 {
		if len(b) < headerLen+exHeaderLen {
			return r, ErrLength
		}
		pin, pout := int(h.U16(16)), int(h.U16(18))
		r.Response, r.Room = h.U64(8), 8*(out+pout)
		b = b[headerLen+exHeaderLen:]
		switch {
		case 8*(in+pin) != len(b):
			return r, ErrLength
		case !known:
			return r, ErrCommand
		case 8*in < l.in:
			return r, ErrShort
		case h.U32(20) != 0, (r.Response == 0) != (r.Room == 0):
			return r, ErrLength
		case r.Response != 0 && 8*out < l.out:
			return r, ErrShort
		}
		r.Body, r.Driver = b[:8*in], b[8*in:]
		return r, nil
	}
	switch {
	case 4*in != len(b):
		return r, ErrLength
	case !known:
		return r, ErrCommand
	}
	b = b[headerLen:]
	if len(b) < l.in || 4*out < l.out {
		return r, ErrShort
	}
	r.Body, r.Driver, r.Room = b[:l.in:l.in], b[l.in:], 4*out
	if l.response {
		r.Response = r.Body.U64(0)
	}
	return r, nil
}

// A CQRequest is a CQ to create.
type CQRequest struct {
	UserHandle uint64
	Entries    uint32
	Vector     uint32
	Channel    int32 // a descriptor; negative means none
}

// ParseCreateCQ decodes the body of create_cq.
func ParseCreateCQ(b Body) CQRequest {
	return CQRequest{b.U64(8), b.U32(16), b.U32(20), int32(b.U32(24))}
}

// ParseCreateCQEx decodes the body of the extended create_cq. more is true if the body requests
// features the plain command does not have, for example time stamps.
func ParseCreateCQEx(b Body) (q CQRequest, more bool) {
	q = CQRequest{b.U64(0), b.U32(8), b.U32(12), int32(b.U32(16))}
	return q, b.U32(20) != 0 || b.U32(24) != 0 || b.U32(28) != 0
}

// An MRRequest is a region to register.
type MRRequest struct {
	Start, Length, HCAVA uint64
	PD, Access           uint32
	Key                  uint8
}

// Access flags of a region.
const (
	AccessLocalWrite   = 1 << 0
	AccessRemoteWrite  = 1 << 1
	AccessRemoteRead   = 1 << 2
	AccessRemoteAtomic = 1 << 3
	AccessMWBind       = 1 << 4
)

// ParseRegMR decodes the bodies of reg_mr.
func ParseRegMR(r *Request) MRRequest {
	b := r.Body
	return MRRequest{b.U64(8), b.U64(16), b.U64(24), b.U32(32), b.U32(36), r.Driver.U8(0)}
}

// A QPRequest is a queue pair to create.
type QPRequest struct {
	UserHandle               uint64
	PD, SendCQ, RecvCQ, SRQ  uint32
	SendWR, RecvWR           uint32
	SendSGE, RecvSGE, Inline uint32
	SignalAll                bool
	Type                     uint8 // RC is 2
	IsSRQ                    bool
}

// TypeRC is the only type of queue pair in iWARP.
const TypeRC = 2

// ParseCreateQP decodes the body of create_qp.
func ParseCreateQP(b Body) QPRequest {
	return QPRequest{
		UserHandle: b.U64(8), PD: b.U32(16), SendCQ: b.U32(20), RecvCQ: b.U32(24), SRQ: b.U32(28),
		SendWR: b.U32(32), RecvWR: b.U32(36), SendSGE: b.U32(40), RecvSGE: b.U32(44), Inline: b.U32(48),
		SignalAll: b.U8(52) != 0, Type: b.U8(53), IsSRQ: b.U8(54) != 0,
	}
}

// ParseCreateQPEx decodes the body of the extended create_qp. more is true if the body requests
// features the plain command does not have.
func ParseCreateQPEx(b Body) (q QPRequest, more bool) {
	// The attributes have the layout of the plain command, after the address of the response.
	q = ParseCreateQP(append(make(Body, 8), b.Bytes(0, 48)...))
	return q, b.U32(48) != 0 || b.U32(52) != 0
}

// An SRQRequest is a shared receive queue to create.
type SRQRequest struct {
	UserHandle         uint64
	PD, WR, SGE, Limit uint32
}

// ParseCreateSRQ decodes the body of create_srq.
func ParseCreateSRQ(b Body) SRQRequest {
	return SRQRequest{b.U64(8), b.U32(16), b.U32(20), b.U32(24), b.U32(28)}
}

// ParseCreateXSRQ decodes the body of create_xsrq. more is true for types other than the basic
// type.
func ParseCreateXSRQ(b Body) (q SRQRequest, more bool) {
	return SRQRequest{b.U64(8), b.U32(20), b.U32(24), b.U32(28), b.U32(32)}, b.U32(16) != 0
}

// Bits of the attribute masks of queue pairs and shared receive queues.
const (
	QPState       = 1 << 0
	QPCurState    = 1 << 1
	QPAccessFlags = 1 << 3
	QPPort        = 1 << 5
	QPAddress     = 1 << 7  // address of the peer, for a queue pair that is connected without rdma_cm
	QPDestination = 1 << 20 // number of the peer's queue pair

	QPStandardBits = 1<<21 - 1 // all defined bits

	SRQMaxWR = 1 << 0
	SRQLimit = 1 << 1
)

// A State is the state of a queue pair.
type State uint8

// The states.
const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns the name of the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// A ModifyRequest is a change of a queue pair.
type ModifyRequest struct {
	QP, Mask uint32
	State    State
	Access   uint32
}

// ParseModifyQP decodes the body of modify_qp.
func ParseModifyQP(b Body) ModifyRequest {
	return ModifyRequest{QP: b.U32(64), Mask: b.U32(68), Access: b.U32(88), State: State(b.U8(96))}
}

// An AsyncType is the type of an asynchronous event.
type AsyncType uint32

// The types of events sent by the service's devices.
const (
	AsyncCQError   AsyncType = 0
	AsyncQPFatal   AsyncType = 1
	AsyncQPRequest AsyncType = 2
	AsyncQPAccess  AsyncType = 3
	AsyncSQDrained AsyncType = 5
	AsyncSRQLimit  AsyncType = 15
	AsyncQPLastWQE AsyncType = 16
	AsyncGIDChange AsyncType = 18
)

// AsyncEvent returns an event for the asynchronous descriptor.
func AsyncEvent(userHandle uint64, t AsyncType) []byte {
	b := make(Body, 16)
	b.Put64(0, userHandle)
	b.Put32(8, uint32(t))
	return b
}
