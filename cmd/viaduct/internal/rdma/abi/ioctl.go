package abi

import "errors"

// IoctlVerbs is the number of the ioctl for commands of libraries that do not use write.
const IoctlVerbs = 0xc0181b01

// Additional errors of commands sent by ioctl.
var (
	ErrFault    = errors.New("abi: the program has no such memory")                    // EFAULT
	ErrProtocol = errors.New("abi: there is no such method, or not with an attribute") // EPROTONOSUPPORT
)

// Commands without a write form: open a context without asynchronous events, open the asynchronous
// events, and query one GID or all.
const (
	OpenContext Command = 1<<30 + iota
	AllocAsync
	QueryGID
	QueryGIDTable
)

// OptionalAccess, in the answer to OpenContext, announces a device that ignores unknown optional
// access flags of a region.
const OptionalAccess = 1

const (
	ioctlHeaderLen = 24
	attrLen        = 16
	maxIoctl       = 4096
	maxAttr        = 1<<16 - 1 // longest value of an attribute

	attrMandatory   = 1 << 0
	attrValidOutput = 1 << 1

	attrDriverIn  = 0x1000
	attrDriverOut = 0x1001
)

// A methodID names a method of a class of objects.
type methodID struct{ object, method uint16 }

// Classes of objects.
const (
	objDevice     = 0
	objPD         = 1
	objCQ         = 3
	objQP         = 4
	objSRQ        = 5
	objAH         = 6
	objMR         = 7
	objMW         = 8
	objAsyncEvent = 16
)

// invokeWrite is the method to carry a write command. Its attributes are the body, the response and
// the number of the command.
var invokeWrite = methodID{objDevice, 0}

const (
	invokeIn = iota
	invokeOut
	invokeCommand
)

// A method is a command in the ioctl's own form, with attributes instead of a body and a response.
type method struct {
	command Command
	in      []attrIn
	out     []attrOut
	// rest, if set, decodes the parts that do not correspond to one attribute each.
	rest func(v *Ioctl, body Body) error
}

// An attrIn maps an attribute to a place in the body.
type attrIn struct {
	id       uint16
	at, size int
	kind     attrKind
	optional bool
}

type attrKind uint8

const (
	value  attrKind = iota // size bytes, in the attribute or at the address in it
	number                 // a 64-bit number; the body has its lowest size bytes
	object                 // a handle or a descriptor, without a length
)

// An attrOut maps a part of the core's response to an attribute. A part without a size is a handle
// or a descriptor, and is stored in the attribute itself.
type attrOut struct {
	id       uint16
	at, size int
}

var methods = map[methodID]*method{
	{objDevice, 2}: {command: QueryPort, in: []attrIn{{0, 8, 1, number, false}}, out: []attrOut{{1, 0, QueryPortLen}}},
	{objDevice, 3}: {command: OpenContext, out: []attrOut{{0, 0, 4}, {1, 4, 8}}},
	// The body is the length of an entry, the flags, and the room for the entries.
	{objDevice, 5}: {command: QueryGIDTable, in: []attrIn{{0, 0, 4, number, false}, {1, 4, 4, value, false}},
		out: []attrOut{{2, 8, maxAttr}, {3, 0, 8}},
		rest: func(v *Ioctl, body Body) error {
			if a := v.find(2); a != nil {
				body.Put32(8, uint32(a.len))
			}
			return nil
		}},
	{objDevice, 6}: {command: QueryGID, in: []attrIn{{0, 0, 4, number, false}, {1, 4, 4, number, false}, {2, 8, 4, value, false}},
		out: []attrOut{{3, 0, GIDEntryLen}}},
	{objPD, 0}:         {command: DeallocPD, in: []attrIn{{0, 0, 4, object, false}}},
	{objAsyncEvent, 0}: {command: AllocAsync, out: []attrOut{{0, 0, 0}}},
	{objMR, 1}:         {command: DeregMR, in: []attrIn{{0, 0, 4, object, false}}},
	{objAH, 0}:         {command: DestroyAH, in: []attrIn{{0, 0, 4, object, false}}},
	{objMW, 0}:         {command: DeallocMW, in: []attrIn{{0, 0, 4, object, false}}},
	{objCQ, 0}: {command: CreateCQ,
		in: []attrIn{{1, 16, 4, value, false}, {2, 8, 8, value, false}, {3, 24, 4, object, true},
			{4, 20, 4, value, false},
			{5, 28, 4, value, true}, {7, 0, 4, object, true}},
		out: []attrOut{{0, 0, 0}, {6, 4, 4}},
		rest: func(v *Ioctl, body Body) error {
			if v.find(3) == nil {
				body.Put32(24, ^uint32(0)) // no channel
			}
			if body.U32(28) != 0 {
				return ErrCommand // time stamps
			}
			return nil
		}},
	{objCQ, 1}: {command: DestroyCQ, in: []attrIn{{0, 8, 4, object, false}}, out: []attrOut{{1, 0, 8}}},
	{objQP, 0}: {command: CreateQP,
		in: []attrIn{{1, 0, 4, object, true}, {2, 16, 4, object, true}, {3, 28, 4, object, true},
			{4, 20, 4, object, true},
			{5, 24, 4, object, true}, {7, 8, 8, value, false}, {8, 32, 20, value, false}, {9, 53, 1, number, false},
			{10, 0, 4, value, true}, {12, 4, 4, object, true}},
		out: []attrOut{{0, 0, 0}, {13, 8, 20}, {14, 4, 4}},
		rest: func(v *Ioctl, body Body) error {
			const signalAll = 1 << 12 // IB_UVERBS_QP_CREATE_SQ_SIG_ALL
			// Values without a place in the body of the write command use the place of the
			// response's address.
			flags := body.U32(0)
			switch {
			case v.find(1) != nil, flags&^signalAll != 0:
				return ErrCommand // only other types of queue pairs have these attributes
			case v.find(2) == nil, v.find(4) == nil, v.find(5) == nil:
				return ErrLength
			}
			if flags != 0 {
				body.Put8(52, 1)
			}
			if v.find(3) != nil {
				body.Put8(54, 1)
			}
			return nil
		}},
	{objQP, 1}: {command: DestroyQP, in: []attrIn{{0, 8, 4, object, false}}, out: []attrOut{{1, 0, 4}}},
	{objSRQ, 0}: {command: CreateSRQ,
		in: []attrIn{{1, 16, 4, object, false}, {4, 8, 8, value, false}, {5, 20, 4, value, false},
			{6, 24, 4, value, false},
			{7, 28, 4, value, false}, {9, 0, 4, number, false}, {10, 4, 4, object, true}},
		out: []attrOut{{0, 0, 0}, {11, 4, 4}, {12, 8, 4}, {13, 12, 4}},
		rest: func(v *Ioctl, body Body) error {
			if body.U32(0) != 0 {
				return ErrCommand // only the basic type is supported
			}
			return nil
		}},
	{objSRQ, 1}: {command: DestroySRQ, in: []attrIn{{0, 8, 4, object, false}}, out: []attrOut{{1, 0, 4}}},
}

// An attr is an attribute.
type attr struct {
	id, len, flags uint16
	data           uint64
}

// An Ioctl is a command carried by an ioctl. The Response of the Request is 0, because Answer
// determines where the parts of the response go.
type Ioctl struct {
	Request
	// Asks is set if the program only asks whether the ioctl accepts write commands.
	Asks bool

	at    uint64 // address of the structure
	raw   Body   // the structure with its header
	attrs []attr
	out   []attrOut
}

// A Put is a run of bytes to write at an address.
type Put struct {
	At    uint64
	Bytes []byte
}

// ParseIoctl decodes the structure at an address, a command to a device with the given driver. read
// reads the program's memory. The error is ErrFault, ErrLength, ErrProtocol, ErrCommand or
// ErrShort.
func ParseIoctl(driver uint32, at uint64, read func(addr uint64, p []byte) error) (*Ioctl, error) {
	v := &Ioctl{at: at, raw: make(Body, ioctlHeaderLen)}
	if read(at, v.raw) != nil {
		return nil, ErrFault
	}
	n, count := int(v.raw.U16(0)), int(v.raw.U16(6))
	id := methodID{v.raw.U16(2), v.raw.U16(4)}
	switch {
	case n > maxIoctl, n != ioctlHeaderLen+attrLen*count:
		return nil, ErrLength
	case v.raw.U64(8) != 0, v.raw.U32(20) != 0:
		return nil, ErrProtocol
	case v.raw.U32(16) != driver:
		return nil, ErrLength
	}
	m := methods[id]
	if m == nil && id != invokeWrite {
		return nil, ErrProtocol
	}
	v.raw = append(v.raw, make([]byte, attrLen*count)...)
	if read(at+ioctlHeaderLen, v.raw[ioctlHeaderLen:]) != nil {
		return nil, ErrFault
	}
	seen := map[uint16]bool{}
	for i := range count {
		b := v.raw[ioctlHeaderLen+attrLen*i:]
		a := attr{b.U16(0), b.U16(2), b.U16(4), b.U64(8)}
		switch {
		case seen[a.id], b.U16(6) != 0:
			return nil, ErrLength
		case a.flags&attrMandatory != 0 && !m.has(a.id):
			return nil, ErrProtocol
		}
		seen[a.id] = true
		v.attrs = append(v.attrs, a)
	}
	var err error
	if v.Driver, err = v.bytes(attrDriverIn, read); err != nil {
		return nil, err
	}
	if m == nil {
		err = v.invoke(read)
	} else {
		err = v.translate(m, read)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// has reports whether a method has an attribute. m is nil for invokeWrite.
func (m *method) has(id uint16) bool {
	if id == attrDriverIn || id == attrDriverOut {
		return true
	}
	if m == nil {
		return id <= invokeCommand
	}
	for _, in := range m.in {
		if in.id == id {
			return true
		}
	}
	for _, out := range m.out {
		if out.id == id {
			return true
		}
	}
	return false
}

// find returns an attribute, or nil.
func (v *Ioctl) find(id uint16) *attr {
	for i := range v.attrs {
		if v.attrs[i].id == id {
			return &v.attrs[i]
		}
	}
	return nil
}

// bytes returns the value of an attribute, stored in the attribute or at the address in the
// attribute. It returns nil if the attribute is absent.
func (v *Ioctl) bytes(id uint16, read func(uint64, []byte) error) (Body, error) {
	a := v.find(id)
	switch {
	case a == nil:
		return nil, nil
	case a.len > MaxRequest:
		return nil, ErrLength
	}
	b := make(Body, max(int(a.len), 8))
	if a.len <= 8 {
		b.Put64(0, a.data)
	} else if read(a.data, b) != nil {
		return nil, ErrFault
	}
	return b[:a.len], nil
}

// invoke decodes a write command carried by the ioctl.
func (v *Ioctl) invoke(read func(uint64, []byte) error) error {
	c, err := v.bytes(invokeCommand, read)
	if err != nil {
		return err
	}
	if len(c) != 8 || c.U64(0)&^uint64(Extended|0xff) != 0 {
		return ErrLength
	}
	v.Command = Command(c.U64(0))
	l, known := layouts[v.Command]
	if !known {
		return ErrCommand
	}
	if v.Body, err = v.bytes(invokeIn, read); err != nil {
		return err
	}
	v.Asks = v.Command == QueryDevice && len(v.attrs) == 1
	room := 0
	if out := v.find(invokeOut); out != nil {
		room = int(out.len)
	}
	if len(v.Body) < l.in || room < l.out {
		if v.Asks {
			return nil
		}
		return ErrShort
	}
	v.Room = room
	if out := v.find(attrDriverOut); out != nil {
		v.Room += int(out.len)
	}
	v.out = []attrOut{{invokeOut, 0, room}}
	return nil
}

// translate converts the attributes to the equivalent write request.
func (v *Ioctl) translate(m *method, read func(uint64, []byte) error) error {
	v.Command, v.out = m.command, m.out
	v.Body = make(Body, layouts[m.command].in)
	for _, in := range m.in {
		b, err := v.bytes(in.id, read)
		if err != nil {
			return err
		}
		a := v.find(in.id)
		if a == nil {
			if !in.optional {
				return ErrLength
			}
			continue
		}
		to := v.Body[in.at : in.at+in.size]
		switch in.kind {
		case object:
			if len(b) != 0 || a.data>>31 != 0 {
				return ErrLength
			}
			to.Put32(0, uint32(a.data))
		case number:
			if len(b) != 8 || in.size < 8 && b.U64(0)>>(8*in.size) != 0 {
				return ErrLength
			}
			copy(to, b)
		default:
			if len(b) != in.size {
				return ErrLength
			}
			copy(to, b)
		}
	}
	for _, out := range m.out {
		if v.find(out.id) == nil && out.size == 0 {
			return ErrLength
		}
	}
	if m.rest != nil {
		return m.rest(v, v.Body)
	}
	return nil
}

// Key identifies the command: a repetition of the same call has the same key.
func (v *Ioctl) Key() []byte {
	b := le.AppendUint32([]byte("ioctl"), uint32(v.Command))
	b = le.AppendUint64(b, v.at)
	b = append(b, v.Body...)
	return append(b, v.Driver...)
}

// Answer returns the bytes to write for a response of the core and a response of the provider. Both
// may be empty.
func (v *Ioctl) Answer(core, driver Body) (puts []Put) {
	// All attributes are written back. Attributes with a new value are marked, and numbers are
	// stored inline.
	raw := append(Body(nil), v.raw...)
	put := func(id uint16, b Body) {
		for i := range v.attrs {
			a := &v.attrs[i]
			if a.id != id {
				continue
			}
			if b = b[:min(len(b), int(a.len))]; len(b) > 0 {
				puts = append(puts, Put{a.data, b})
			}
			raw.Put16(ioctlHeaderLen+attrLen*i+4, a.flags|attrValidOutput)
		}
	}
	for _, o := range v.out {
		switch {
		case o.size > 0:
			put(o.id, core[min(o.at, len(core)):min(o.at+o.size, len(core))])
		default:
			for i := range v.attrs {
				if v.attrs[i].id == o.id {
					raw.Put64(ioctlHeaderLen+attrLen*i+8, uint64(core.U32(o.at)))
				}
			}
		}
	}
	if len(driver) > 0 {
		put(attrDriverOut, driver)
	}
	if len(v.attrs) > 0 {
		puts = append(puts, Put{v.at + ioctlHeaderLen, raw[ioctlHeaderLen:]})
	}
	return puts
}
