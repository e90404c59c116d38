package abi

import "fmt"

// Commands of RDMA's netlink family, as message types.
const (
	NLGet        = 0x1401
	NLPortGet    = 0x1405
	NLSysGet     = 0x1406
	NLResGet     = 0x1409
	NLGetChardev = 0x140f
	NLStatGet    = 0x1411

	nlError  = 2
	nlDone   = 3
	nlMulti  = 2
	nlAck    = 4
	nlDump   = 0x300
	nlCapped = 0x100 // the acknowledgement has only the request's header
)

// Attributes.
const (
	attrDevIndex    = 1
	attrDevName     = 2
	attrPortIndex   = 3
	attrCapFlags    = 4
	attrFWVersion   = 5
	attrNodeGUID    = 6
	attrSysGUID     = 7
	attrPortState   = 12
	attrPortPhys    = 13
	attrNodeType    = 14
	attrNdevIndex   = 50
	attrNdevName    = 51
	attrSysNetns    = 66
	attrCharType    = 69
	attrCharName    = 70
	attrCharABI     = 71
	attrChardev     = 72
	attrDriverID    = 73
	attrDevProtocol = 67
	attrCopyOnFork  = 93
)

// A Driver holds the properties of the kernel's driver for a device.
type Driver struct {
	ID       uint32 // number of the libibverbs provider, in netlink and in the ioctl header
	ABI      uint64 // version of the driver's commands
	Node     uint8  // node type, from which libibverbs derives the transport
	Protocol string // name of the protocol in netlink
}

// SIW is the kernel's software iWARP.
var SIW = Driver{ID: 18, ABI: 1, Node: NodeRNIC, Protocol: "iw"}

// RXE is the kernel's software RoCE.
var RXE = Driver{ID: 14, ABI: 2, Node: NodeCA, Protocol: "roce"}

// Node types.
const (
	NodeCA   = 1
	NodeRNIC = 4
)

const (
	rdmaCMABI   = 4
	stateActive = 4
	physLinkUp  = 5
)

// A Found is the description of a device in netlink.
type Found struct {
	Driver    Driver
	Index     uint32
	Name      string // for example siw0
	GUID      uint64 // as a number whose highest byte is the first byte of the GUID
	Uverbs    string // for example uverbs0
	UverbsDev uint64 // device number
	NetIndex  uint32 // number of the network interface, 0 for none
	NetName   string

	Objects func() []Object // lists the programs' objects; nil: there are none
}

// CharDev returns a device number in the kernel's format for user space.
func CharDev(major, minor uint32) uint64 {
	return uint64(minor&0xff | major<<8 | (minor&^0xff)<<12)
}

// CMDev is the device number of rdma_cm.
var CMDev = CharDev(10, 121)

// AnswerNetlink answers the messages in b, sent by the port pid to a socket of RDMA's netlink
// family. Each element of the result is a datagram. A message with an invalid length ends the list,
// and gets no answer.
func AnswerNetlink(b []byte, pid uint32, devices []Found) (out [][]byte) {
	for len(b) >= 16 {
		h := Body(b)
		n := int(h.U32(0))
		if n < 16 || n > len(b) {
			return out
		}
		m := nlRequest{typ: h.U16(4), flags: h.U16(6), seq: h.U32(8), pid: pid, head: b[:16], attrs: b[16:n]}
		out = append(out, m.answer(devices)...)
		b = b[min(len(b), (n+3)&^3):]
	}
	return out
}

type nlRequest struct {
	typ, flags uint16
	seq, pid   uint32
	head       []byte
	attrs      []byte
}

// attr returns an attribute of the request, and whether the request has the attribute.
func (m *nlRequest) attr(typ uint16) (Body, bool) {
	for b := m.attrs; len(b) >= 4; {
		n := int(le.Uint16(b))
		if n < 4 || n > len(b) {
			return nil, false
		}
		if le.Uint16(b[2:])&0x3fff == typ {
			return b[4:n], true
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return nil, false
}

func (m *nlRequest) dumps() bool { return m.flags&nlDump == nlDump }

func (m *nlRequest) has(typ uint16) bool {
	_, ok := m.attr(typ)
	return ok
}

func (m *nlRequest) answer(devices []Found) [][]byte {
	for k := range objectKinds {
		if m.typ == objectKinds[k].command {
			return m.resources(devices, ObjectKind(k))
		}
	}
	switch m.typ {
	case NLGet:
		return m.each(devices, (*Found).describe)
	case NLPortGet:
		return m.each(devices, (*Found).describePort)
	case NLResGet:
		return m.each(devices, (*Found).summary)
	case NLSysGet:
		return m.done(m.message(0, nlAttr(nlAttr(nil, attrSysNetns, []byte{1}), attrCopyOnFork, []byte{1})))
	case NLGetChardev:
		return m.chardev(devices)
	case NLStatGet:
		return m.statistics(devices)
	}
	return m.fail(eopnotsupp)
}

// each describes all devices, or the requested device.
func (m *nlRequest) each(devices []Found, describe func(*Found) []byte) (out [][]byte) {
	if m.dumps() {
		for i := range devices {
			out = append(out, m.message(nlMulti, describe(&devices[i])))
		}
		return append(out, m.end())
	}
	d := m.device(devices)
	if d == nil {
		return m.fail(enodev)
	}
	return m.done(m.message(0, describe(d)))
}

// end returns the last message of a list.
func (m *nlRequest) end() []byte { return nlMessage(nlDone, nlMulti, m.seq, m.pid, make([]byte, 4)) }

// done returns an answer, with an acknowledgement if requested. Lists are not acknowledged, because
// lists have an end message.
func (m *nlRequest) done(answer []byte) [][]byte {
	if m.flags&nlAck == 0 {
		return [][]byte{answer}
	}
	return [][]byte{answer, nlMessage(nlError, nlCapped, m.seq, m.pid, append(Words(0), m.head...))}
}

const (
	enoent     = 2
	enodev     = 19
	einval     = 22
	eopnotsupp = 95
)

// device returns the device in the request, or nil for an unknown device.
func (m *nlRequest) device(devices []Found) *Found {
	a, ok := m.attr(attrDevIndex)
	for i := range devices {
		if ok && len(a) == 4 && devices[i].Index == a.U32(0) {
			return &devices[i]
		}
	}
	return nil
}

// describePort describes the port of a device.
func (d *Found) describePort() []byte {
	b := nlAttr(d.head(), attrPortIndex, Words(1))
	b = nlAttr(b, attrPortState, []byte{stateActive})
	b = nlAttr(b, attrPortPhys, []byte{physLinkUp})
	if d.NetIndex != 0 {
		b = nlAttr(b, attrNdevIndex, Words(d.NetIndex))
		b = nlAttr(b, attrNdevName, append([]byte(d.NetName), 0))
	}
	return b
}

// describe describes a device.
func (d *Found) describe() []byte {
	b := nlAttr(d.head(), attrPortIndex, Words(1))
	b = nlAttr(b, attrCapFlags, make([]byte, 8))
	b = nlAttr(b, attrNodeGUID, le.AppendUint64(nil, d.GUID))
	b = nlAttr(b, attrSysGUID, le.AppendUint64(nil, d.GUID))
	b = nlAttr(b, attrNodeType, []byte{d.Driver.Node})
	return nlAttr(b, attrDevProtocol, append([]byte(d.Driver.Protocol), 0))
}

func (m *nlRequest) chardev(devices []Found) [][]byte {
	typ, _ := m.attr(attrCharType)
	name, abi, dev := "", uint64(0), uint64(0)
	var b []byte
	switch string(trimNul(typ)) {
	case "uverbs":
		d := m.device(devices)
		if d == nil {
			return m.fail(enodev)
		}
		name, abi, dev = d.Uverbs, d.Driver.ABI, d.UverbsDev
		b = nlAttr(b, attrDriverID, Words(d.Driver.ID))
	case "rdma_cm":
		name, abi, dev = "rdma_cm", rdmaCMABI, CMDev
	case "":
		return m.fail(einval)
	default:
		return m.fail(enodev)
	}
	head := nlAttr(nil, attrCharName, append([]byte(name), 0))
	head = nlAttr(head, attrCharABI, le.AppendUint64(nil, abi))
	head = nlAttr(head, attrChardev, le.AppendUint64(nil, dev))
	return m.done(m.message(0, append(head, b...)))
}

func trimNul(b []byte) []byte {
	for i, c := range b {
		if c == 0 {
			return b[:i]
		}
	}
	return b
}

func (m *nlRequest) message(flags uint16, attrs []byte) []byte {
	return nlMessage(m.typ, flags, m.seq, m.pid, attrs)
}

func (m *nlRequest) fail(errno int32) [][]byte {
	return [][]byte{nlMessage(nlError, 0, m.seq, m.pid, append(Words(uint32(-errno)), m.head...))}
}

func nlMessage(typ, flags uint16, seq, pid uint32, body []byte) []byte {
	b := make(Body, 16, 16+len(body))
	b.Put32(0, uint32(16+len(body)))
	b.Put16(4, typ)
	b.Put16(6, flags)
	b.Put32(8, seq)
	b.Put32(12, pid)
	return append(b, body...)
}

// nlAttr appends an attribute, padded to a multiple of 4 bytes.
func nlAttr(b []byte, typ uint16, v []byte) []byte {
	b = le.AppendUint16(b, uint16(4+len(v)))
	b = le.AppendUint16(b, typ)
	b = append(b, v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// GUIDString formats a GUID as sysfs does.
func GUIDString(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}
