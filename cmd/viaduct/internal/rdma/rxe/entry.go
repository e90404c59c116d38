package rxe

import (
	"strconv"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// An Op is the operation of a send entry, with the values of ibv_wr_opcode.
type Op uint32

// The operations.
const (
	OpWrite Op = iota
	OpWriteImm
	OpSend
	OpSendImm
	OpRead
	OpCompareSwap
	OpFetchAdd
	OpLocalInvalidate
	OpBindWindow
	OpSendInvalidate
	OpAtomicWrite Op = 15
)

// Flags of send entries.
const (
	flagFence     = 1 << 0
	flagSignaled  = 1 << 1
	flagSolicited = 1 << 2
	flagInline    = 1 << 3
)

// Limits of queue pairs' rings.
const (
	MaxSGE    = 32
	MaxInline = 512 // bytes; MaxSGE elements take as many
	MaxWR     = 16 << 10
	MaxCQE    = 1 << 20
	MaxSRQSGE = 27
	maxSize   = 1 << 31 // bytes of a message
)

const (
	sendHeadLen = 208 // bytes of a send entry before its elements or inline data
	recvHeadLen = 40
	sgeLen      = 16
)

// An element names a piece of the program's memory.
type element struct {
	addr   uint64
	length uint32
	key    uint32
}

// An elementList holds the elements of an entry.
type elementList struct {
	n  int
	at [MaxSGE]element
}

func (l *elementList) list() []element { return l.at[:l.n] }

func (l *elementList) parse(b abi.Body, n int) {
	l.n = n
	for i := range n {
		l.at[i] = element{b.U64(sgeLen * i), b.U32(sgeLen*i + 8), b.U32(sgeLen*i + 12)}
	}
}

// size returns the sum of the lengths. The length field of the entry is not used, because some
// versions of the provider set a wrong length.
func (l *elementList) size() (n uint64) {
	for i := range l.list() {
		n += uint64(l.at[i].length)
	}
	return n
}

// A posted holds the values of a send entry needed for the completion.
type posted struct {
	id    uint64
	op    Op
	flags uint32
	imm   uint32 // immediate data, or the key to invalidate
	size  uint64 // bytes of payload, or bytes to read
}

// A sendEntry is a copy of an entry of a send queue.
type sendEntry struct {
	posted
	remote remote
	ud     struct{ qpn, qkey, ah uint32 }
	bind   bindRequest

	elements elementList
	inline   []byte // part of raw; nil if the payload is in elements
	valid    bool   // false if the entry has more elements or inline bytes than fit into it

	raw [sendHeadLen + MaxInline]byte
}

// A remote is the place in the peer's memory a request accesses, with the operands of an atomic
// operation.
type remote struct {
	addr          uint64
	key           uint32
	compare, swap uint64
}

// A bindRequest holds the fields of an entry to bind a window.
type bindRequest struct {
	addr, length           uint64
	regionKey, key, newKey uint32
	access                 uint32
}

// take copies an entry from a slot in the ring, and decodes the copy.
func (e *sendEntry) take(slot []byte) {
	n := copy(e.raw[:sendHeadLen], slot)
	b := abi.Body(e.raw[:n])
	e.id, e.op, e.flags, e.imm = b.U64(0), Op(b.U32(12)), b.U32(16), b.U32(20)
	e.inline, e.elements.n, e.valid = nil, 0, true
	room := min(len(slot)-sendHeadLen, MaxInline)
	payload := e.raw[sendHeadLen : sendHeadLen+room]
	switch {
	case e.op == OpAtomicWrite:
		e.inline = payload[:8]
	case e.flags&flagInline != 0 && e.op != OpRead:
		n := b.U32(184)
		if e.valid = n <= uint32(room); e.valid {
			e.inline = payload[:n]
		}
	default:
		n := b.U32(196)
		if e.valid = n <= uint32(room/sgeLen); e.valid {
			copy(payload, slot[sendHeadLen:sendHeadLen+int(n)*sgeLen])
			e.elements.parse(payload, int(n))
		}
	}
	copy(e.inline, slot[sendHeadLen:])
	e.size = uint64(len(e.inline)) + e.elements.size()
	switch e.op {
	case OpCompareSwap, OpFetchAdd:
		e.remote = remote{addr: b.U64(24), compare: b.U64(32), swap: b.U64(40), key: b.U32(48)}
	case OpBindWindow:
		e.bind = bindRequest{b.U64(24), b.U64(32), b.U32(40), b.U32(44), b.U32(48), b.U32(52)}
	default:
		e.remote = remote{addr: b.U64(24), key: b.U32(32)}
		e.ud.qpn, e.ud.qkey, e.ud.ah = b.U32(24), b.U32(28), b.U32(36)
	}
}

// A recvEntry is a copy of an entry of a receive queue.
type recvEntry struct {
	id       uint64
	elements elementList
	valid    bool // false if the entry has more elements than fit into it
	raw      [recvHeadLen + MaxSGE*sgeLen]byte
}

func (e *recvEntry) take(slot []byte) {
	copy(e.raw[:recvHeadLen], slot)
	b := abi.Body(e.raw[:recvHeadLen])
	e.id, e.elements.n = b.U64(0), 0
	n := b.U32(28)
	if e.valid = n <= uint32(min((len(slot)-recvHeadLen)/sgeLen, MaxSGE)); e.valid {
		list := e.raw[recvHeadLen : recvHeadLen+int(n)*sgeLen]
		copy(list, slot[recvHeadLen:])
		e.elements.parse(list, int(n))
	}
}

// local reports whether an operation needs no peer.
func (o Op) local() bool { return o == OpBindWindow || o == OpLocalInvalidate }

// localRights returns the rights the requester's regions must have.
func (o Op) localRights() uint32 {
	switch o {
	case OpRead, OpCompareSwap, OpFetchAdd:
		return abi.AccessLocalWrite
	}
	return 0
}

var opNames = map[Op]string{OpWrite: "Write", OpWriteImm: "Write with immediate", OpSend: "Send",
	OpSendImm: "Send with immediate", OpRead: "Read",
	OpCompareSwap: "Compare-and-Swap", OpFetchAdd: "Fetch-and-Add", OpLocalInvalidate: "Local Invalidate",
	OpBindWindow:     "Bind",
	OpSendInvalidate: "Send with Invalidate", OpAtomicWrite: "Atomic Write"}

// String returns the name of the operation.
func (o Op) String() string {
	if n, ok := opNames[o]; ok {
		return n
	}
	return "operation " + strconv.Itoa(int(o))
}
