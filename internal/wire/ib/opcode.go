package ib

import "fmt"

// An Opcode is the type of a packet: the transport in the upper three bits, the operation in the
// lower five. [ROCE-OP-1]
type Opcode uint8

// A Transport is the service of a queue pair, as the upper bits of the opcodes.
type Transport uint8

// These are the transports of RoCE.
const (
	RC Transport = 0x00 // reliable connection
	UC Transport = 0x20 // unreliable connection
	UD Transport = 0x60 // unreliable datagram
)

const transportMask = 0xe0

// These are the opcodes of the reliable connection. The opcodes of the unreliable connection are
// the same with [UC] added; the unreliable datagram has only SendOnly and SendOnlyImm. [ROCE-OP-1]
const (
	SendFirst          Opcode = 0x00
	SendMiddle         Opcode = 0x01
	SendLast           Opcode = 0x02
	SendLastImm        Opcode = 0x03
	SendOnly           Opcode = 0x04
	SendOnlyImm        Opcode = 0x05
	WriteFirst         Opcode = 0x06
	WriteMiddle        Opcode = 0x07
	WriteLast          Opcode = 0x08
	WriteLastImm       Opcode = 0x09
	WriteOnly          Opcode = 0x0a
	WriteOnlyImm       Opcode = 0x0b
	ReadRequest        Opcode = 0x0c
	ReadResponseFirst  Opcode = 0x0d
	ReadResponseMiddle Opcode = 0x0e
	ReadResponseLast   Opcode = 0x0f
	ReadResponseOnly   Opcode = 0x10
	Acknowledge        Opcode = 0x11
	AtomicAcknowledge  Opcode = 0x12
	CompareSwap        Opcode = 0x13
	FetchAdd           Opcode = 0x14
	SendLastInv        Opcode = 0x16
	SendOnlyInv        Opcode = 0x17
)

// A Kind is the message a packet belongs to.
type Kind uint8

// These are the kinds. Requests come before responses.
const (
	Unassigned Kind = iota
	Send
	Write
	Read
	Atomic
	ReadResponse
	Ack
	AtomicAck
)

// headers is a set of extended headers. They follow the BTH in the order of the constants.
type headers uint8

const (
	deth headers = 1 << iota
	reth
	atomicETH
	aeth
	atomicAckETH
	immDt
	ieth
)

// A row describes an opcode.
type row struct {
	name    string
	kind    Kind
	ext     headers
	payload bool // payload may follow the headers
	begins  bool // first packet of its message
	ends    bool // last packet of its message
	in      transports
}

// transports is the set of services with an operation.
type transports uint8

const (
	rc transports = 1 << iota
	uc
	ud
)

// operations is the table of opcodes without their transport. [ROCE-OP-2]
var operations = [32]row{
	SendFirst:          {"Send First", Send, 0, true, true, false, rc | uc},
	SendMiddle:         {"Send Middle", Send, 0, true, false, false, rc | uc},
	SendLast:           {"Send Last", Send, 0, true, false, true, rc | uc},
	SendLastImm:        {"Send Last with Immediate", Send, immDt, true, false, true, rc | uc},
	SendOnly:           {"Send Only", Send, 0, true, true, true, rc | uc | ud},
	SendOnlyImm:        {"Send Only with Immediate", Send, immDt, true, true, true, rc | uc | ud},
	WriteFirst:         {"RDMA Write First", Write, reth, true, true, false, rc | uc},
	WriteMiddle:        {"RDMA Write Middle", Write, 0, true, false, false, rc | uc},
	WriteLast:          {"RDMA Write Last", Write, 0, true, false, true, rc | uc},
	WriteLastImm:       {"RDMA Write Last with Immediate", Write, immDt, true, false, true, rc | uc},
	WriteOnly:          {"RDMA Write Only", Write, reth, true, true, true, rc | uc},
	WriteOnlyImm:       {"RDMA Write Only with Immediate", Write, reth | immDt, true, true, true, rc | uc},
	ReadRequest:        {"RDMA Read Request", Read, reth, false, true, true, rc},
	ReadResponseFirst:  {"RDMA Read Response First", ReadResponse, aeth, true, true, false, rc},
	ReadResponseMiddle: {"RDMA Read Response Middle", ReadResponse, 0, true, false, false, rc},
	ReadResponseLast:   {"RDMA Read Response Last", ReadResponse, aeth, true, false, true, rc},
	ReadResponseOnly:   {"RDMA Read Response Only", ReadResponse, aeth, true, true, true, rc},
	Acknowledge:        {"Acknowledge", Ack, aeth, false, true, true, rc},
	AtomicAcknowledge:  {"Atomic Acknowledge", AtomicAck, aeth | atomicAckETH, false, true, true, rc},
	CompareSwap:        {"Compare and Swap", Atomic, atomicETH, false, true, true, rc},
	FetchAdd:           {"Fetch and Add", Atomic, atomicETH, false, true, true, rc},
	SendLastInv:        {"Send Last with Invalidate", Send, ieth, true, false, true, rc},
	SendOnlyInv:        {"Send Only with Invalidate", Send, ieth, true, true, true, rc},
}

// describe returns the row of o, or the zero row if the opcode is not assigned.
func (o Opcode) describe() row {
	r := operations[o&^transportMask]
	var in transports
	switch o.Transport() {
	case RC:
		in = rc
	case UC:
		in = uc
	case UD:
		in = ud
		r.ext |= deth
	}
	if r.in&in == 0 {
		return row{}
	}
	return r
}

// Transport returns the service the packet belongs to.
func (o Opcode) Transport() Transport { return Transport(o & transportMask) }

// On returns the opcode of the same operation on the transport t.
func (o Opcode) On(t Transport) Opcode { return o&^transportMask | Opcode(t) }

// Operation returns the opcode of the same operation on a reliable connection.
func (o Opcode) Operation() Opcode { return o &^ transportMask }

// Assigned reports whether the opcode names an operation known to the package.
func (o Opcode) Assigned() bool { return o.describe().kind != Unassigned }

// Kind returns the kind of message the packet belongs to, or Unassigned if the opcode is unknown.
func (o Opcode) Kind() Kind { return o.describe().kind }

// Request reports whether packets of kind k are requests. All other kinds, except Unassigned, are
// responses.
func (k Kind) Request() bool { return k >= Send && k <= Atomic }

// Begins reports whether the packet is the first of its message.
func (o Opcode) Begins() bool { return o.describe().begins }

// Ends reports whether the packet is the last of its message.
func (o Opcode) Ends() bool { return o.describe().ends }

// HasImm reports whether the packet carries immediate data.
func (o Opcode) HasImm() bool { return o.describe().ext&immDt != 0 }

// HasInv reports whether the packet carries a key to invalidate.
func (o Opcode) HasInv() bool { return o.describe().ext&ieth != 0 }

// Follows reports whether a packet of opcode o may follow a packet of opcode prev in the same
// direction; prev is negative if there was none. A message must be complete before the next begins,
// and all packets of a message are of the same kind. [ROCE-OP-12]
func (o Opcode) Follows(prev int) bool {
	r := o.describe()
	if prev < 0 {
		return r.begins
	}
	p := Opcode(prev).describe()
	if p.ends {
		return r.begins
	}
	return !r.begins && r.kind == p.kind
}

// HeaderLen returns the length in bytes of the BTH and the extended headers of the packet.
func (o Opcode) HeaderLen() int { return BTHLen + o.describe().ext.len() }

func (h headers) len() (n int) {
	for i, l := range [...]int{DETHLen, RETHLen, AtomicETHLen, AETHLen, AtomicAckETHLen, ImmDtLen, IETHLen} {
		if h&(1<<i) != 0 {
			n += l
		}
	}
	return n
}

// String returns the name of the operation with the transport, or the number in hex.
func (o Opcode) String() string {
	r := o.describe()
	if r.kind == Unassigned {
		return fmt.Sprintf("opcode %#02x", uint8(o))
	}
	return o.Transport().String() + " " + r.name
}

// String returns the short name of the transport.
func (t Transport) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("transport %#02x", uint8(t))
}
