package abi

// An ObjectKind is a kind of objects listed by netlink.
type ObjectKind int

// The kinds, in the order of the kernel's summary.
const (
	ObjectPD ObjectKind = iota
	ObjectCQ
	ObjectQP
	ObjectCMID
	ObjectMR
	ObjectContext
	ObjectSRQ
)

// objectKinds holds how each kind is listed: name in the summary, command, and the attributes of
// the table, of an entry, and of the number to select an entry.
var objectKinds = [...]struct {
	name                      string
	command, table, entry, id uint16
}{
	ObjectPD:      {"pd", 0x140e, 46, 47, attrPDN},
	ObjectCQ:      {"cq", 0x140c, 35, 36, attrCQN},
	ObjectQP:      {"qp", 0x140a, 19, 20, attrLocalQPN},
	ObjectCMID:    {"cm_id", 0x140b, 30, 31, attrCMIDN},
	ObjectMR:      {"mr", 0x140d, 40, 41, attrMRN},
	ObjectContext: {"ctx", 0x1416, 86, 87, attrContextN},
	ObjectSRQ:     {"srq", 0x1417, 88, 89, attrSRQN},
}

// Attributes of objects.
const (
	attrSummary      = 15
	attrSummaryEntry = 16
	attrSummaryName  = 17
	attrSummaryCount = 18
	attrLocalQPN     = 21
	attrRemoteQPN    = 22
	attrRecvPSN      = 23
	attrSendPSN      = 24
	attrType         = 26
	attrState        = 27
	attrPID          = 28
	attrPortSpace    = 32
	attrSource       = 33
	attrDestination  = 34
	attrCQE          = 37
	attrUsers        = 38
	attrMRLength     = 45
	attrPDN          = 60
	attrCQN          = 61
	attrMRN          = 62
	attrCMIDN        = 63
	attrContextN     = 64
	attrSRQN         = 90

	nested = 1 << 15
)

// An Object is an object of a program, encoded for netlink.
type Object struct {
	Kind  ObjectKind
	ID    uint32
	attrs []byte
}

// NewObject describes an object of a process.
func NewObject(k ObjectKind, id, pid uint32) Object {
	return Object{Kind: k, ID: id, attrs: nlAttr(nlAttr(nil, objectKinds[k].id, Words(id)), attrPID, Words(pid))}
}

// QP adds the attributes of a queue pair.
func (o Object) QP(typ uint8, state State, pd uint32) Object {
	o.attrs = nlAttr(o.attrs, attrRemoteQPN, Words(0))
	o.attrs = nlAttr(o.attrs, attrRecvPSN, Words(0))
	o.attrs = nlAttr(o.attrs, attrSendPSN, Words(0))
	o.attrs = nlAttr(o.attrs, attrType, []byte{typ})
	o.attrs = nlAttr(o.attrs, attrState, []byte{uint8(state)})
	o.attrs = nlAttr(o.attrs, attrPDN, Words(pd))
	return o
}

// Users adds the number of other objects that use o.
func (o Object) Users(n int) Object {
	o.attrs = nlAttr(o.attrs, attrUsers, le.AppendUint64(nil, uint64(n)))
	return o
}

// CQE adds the size of a completion queue.
func (o Object) CQE(n uint32) Object {
	o.attrs = nlAttr(o.attrs, attrCQE, Words(n))
	return o
}

// Length adds the length of registered memory.
func (o Object) Length(n uint64) Object {
	o.attrs = nlAttr(o.attrs, attrMRLength, le.AppendUint64(nil, n))
	return o
}

// CM adds the attributes of an rdma_cm identifier. state is a number of the kernel. The addresses
// are encoded as sockaddr of 28 bytes.
func (o Object) CM(state uint8, space uint32, src, dst []byte) Object {
	o.attrs = nlAttr(o.attrs, attrState, []byte{state})
	o.attrs = nlAttr(o.attrs, attrPortSpace, Words(space))
	for _, a := range []struct {
		attr uint16
		addr []byte
	}{{attrSource, src}, {attrDestination, dst}} {
		if len(a.addr) > 0 {
			storage := make([]byte, 128) // struct sockaddr_storage
			copy(storage, a.addr)
			o.attrs = nlAttr(o.attrs, a.attr, storage)
		}
	}
	return o
}

// head returns the identifying attributes of a device.
func (d *Found) head() []byte {
	return nlAttr(nlAttr(nil, attrDevIndex, Words(d.Index)), attrDevName, append([]byte(d.Name), 0))
}

func (d *Found) objects() []Object {
	if d.Objects == nil {
		return nil
	}
	return d.Objects()
}

// summary counts the objects of a device.
func (d *Found) summary() []byte {
	var n [len(objectKinds)]uint64
	for _, o := range d.objects() {
		n[o.Kind]++
	}
	var table []byte
	for k, kind := range objectKinds {
		entry := nlAttr(nil, attrSummaryName, append([]byte(kind.name), 0))
		entry = nlAttr(entry, attrSummaryCount, le.AppendUint64(nil, n[k]))
		table = nlAttr(table, attrSummaryEntry|nested, entry)
	}
	return nlAttr(d.head(), attrSummary|nested, table)
}

// maxTable bounds the length of a list in a message.
const maxTable = 3 << 10

// resources answers a request for all objects of a kind, or for an object by number.
func (m *nlRequest) resources(devices []Found, k ObjectKind) [][]byte {
	d := m.device(devices)
	id, named := m.attr(objectKinds[k].id)
	switch {
	case d == nil && !m.has(attrDevIndex), !m.dumps() && (!named || len(id) != 4):
		return m.fail(einval)
	case d == nil && m.dumps():
		return m.fail(einval)
	case d == nil:
		return m.fail(enodev)
	case !m.dumps():
		for _, o := range d.objects() {
			if o.Kind == k && o.ID == id.U32(0) {
				return m.done(m.message(0, append(d.head(), o.attrs...)))
			}
		}
		return m.fail(enoent)
	}
	var out [][]byte
	var table []byte
	// Our objects belong to no port. rdma asks for the objects of no port, and then for the objects
	// of each port.
	if port, ok := m.attr(attrPortIndex); ok && len(port) == 4 && port.U32(0) != 0 {
		return [][]byte{m.end()}
	}
	flush := func() {
		if len(table) > 0 {
			out = append(out, m.message(nlMulti, nlAttr(d.head(), objectKinds[k].table|nested, table)))
		}
		table = nil
	}
	for _, o := range d.objects() {
		if o.Kind != k {
			continue
		}
		table = nlAttr(table, objectKinds[k].entry|nested, o.attrs)
		if len(table) > maxTable {
			flush()
		}
	}
	flush()
	return append(out, m.end())
}

// statistics answers a request for counters. There are no counters of single queue pairs.
func (m *nlRequest) statistics(devices []Found) [][]byte {
	const (
		attrStatResource = 75
		attrHWCounters   = 80
	)
	d := m.device(devices)
	switch {
	case d == nil:
		return m.fail(einval)
	case m.dumps():
		return [][]byte{m.end()}
	case m.has(attrStatResource):
		return m.fail(eopnotsupp)
	}
	b := nlAttr(d.head(), attrPortIndex, Words(1))
	return m.done(m.message(0, nlAttr(b, attrHWCounters|nested, nil)))
}
