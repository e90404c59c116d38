package iwarp

import (
	"fmt"
	"sync"

	"viaduct/internal/perturb"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/rdmap"
)

// MaxSGE is the largest number of elements in the gather or scatter list of a request.
const MaxSGE = 8

// MaxInline is the largest payload in bytes of a request with Inline.
const MaxInline = 256

// The limits of a request: [I-62] [DDP-5.2-2]

// [DDP-5.2-2]

// MaxMessage is the largest length in bytes of a message.
const MaxMessage = 1<<32 - 1

// An SGE names a piece of local memory: Len bytes at offset Off of Region, or the slice Buf if
// Region is nil. Memory need not be registered unless a peer accesses the memory by an STag.
type SGE struct {
	Region *MemoryRegion
	Off    uint64 // offset in Region, in bytes
	Len    uint64 // length in bytes
	Buf    []byte // the memory is lent, like Region's, until the completion was polled
}

// Buf returns an SGE for unregistered memory.
func Buf(b []byte) SGE { return SGE{Buf: b} }

func (s *SGE) length() uint64 {
	if s.Region == nil {
		return uint64(len(s.Buf))
	}
	return s.Len
}

// check checks the element when a request is posted. It returns ErrInvalid, ErrRegistered or nil.
func (s *SGE) check(mem *memory) error {
	m := s.Region
	if m == nil {
		return nil
	}
	if !mem.admits(m) {
		return fmt.Errorf("%w: region of another domain or stream", ErrInvalid)
	}
	if size := uint64(m.r.Len()); s.Off > size || s.Len > size-s.Off {
		return fmt.Errorf("%w: %d bytes at %d of a region of %d", ErrInvalid, s.Len, s.Off, size)
	}
	if !m.r.Live() {
		return ErrRegistered
	}
	return nil
}

// pin pins n bytes at offset off of the element for the rights in need. The range must be within
// the element, as ensured by check. Unregistered memory needs no pin, and memory of the region that
// held pins gets no separate pin.
func (s *SGE) pin(mem *memory, held regmem.Ref, off, n uint64, need regmem.Rights) (regmem.Ref, regmem.Outcome) {
	if s.Region == nil {
		return regmem.Of(s.Buf[off : off+n : off+n]), regmem.OK
	}
	r := s.Region.r
	at := r.Base() + s.Off + off
	if regmem.RegionOf(held) == r {
		return mem.within(held, at, n, need)
	}
	return r.Access(at, n, mem.pd.dom, mem, need)
}

// An Op is the operation of a send request.
type Op uint8

// The operations are named after the messages they send.
const (
	OpSend Op = iota
	OpSendInvalidate
	OpSendSE
	OpSendSEInvalidate
	OpWrite
	OpRead
	OpImmediate       // RFC 7306, must be enabled
	OpImmediateSE     // RFC 7306, must be enabled
	OpFetchAdd        // RFC 7306, must be enabled
	OpCmpSwap         // RFC 7306, must be enabled
	OpLocalInvalidate // sends no message

	// OpRecv is the operation in the completion of a receive.
	OpRecv
	numOps
)

var ops = [numOps]struct {
	name string
	msg  rdmap.Opcode
}{
	OpSend:             {"send", rdmap.Send},
	OpSendInvalidate:   {"send with invalidate", rdmap.SendInvalidate},
	OpSendSE:           {"send with SE", rdmap.SendSE},
	OpSendSEInvalidate: {"send with SE and invalidate", rdmap.SendSEInvalidate},
	OpWrite:            {"write", rdmap.Write},
	OpRead:             {"read", rdmap.ReadRequestOp},
	OpImmediate:        {"immediate", rdmap.Immediate},
	OpImmediateSE:      {"immediate with SE", rdmap.ImmediateSE},
	OpFetchAdd:         {"fetch and add", rdmap.AtomicRequestOp},
	OpCmpSwap:          {"compare and swap", rdmap.AtomicRequestOp},
	OpLocalInvalidate:  {"local invalidate", 0},
	OpRecv:             {"receive", 0},
}

// String returns the name of the operation, or the number of an unknown operation.
func (o Op) String() string {
	if o < numOps {
		return ops[o].name
	}
	return fmt.Sprintf("op 0x%02x", uint8(o))
}

// reads reports whether the operation is complete only after the peer's answer.
func (o Op) reads() bool { return o == OpRead || o == OpFetchAdd || o == OpCmpSwap }

// Atomic holds the operands of an Atomic Operation. For OpFetchAdd, Data is added, and Mask marks
// the top bits of fields (0: one field of 64 bits). The zero value with OpFetchAdd changes nothing,
// and shows whether the peer supports Atomic Operations. For OpCmpSwap, if the word equals Compare
// in the bits of CompareMask, the bits of Mask are replaced by the bits of Data.
type Atomic struct { // [RDMAPX-1.1-4]
	Data        uint64
	Mask        uint64
	Compare     uint64
	CompareMask uint64
}

// A SendWR is a request to send, or to write, read or change the peer's memory. The zero value is a
// valid Send of zero bytes; Writes and Reads of zero bytes are valid too.
type SendWR struct { // [RDMAP-5.3-10] [RDMAP-5.2.1-12] [RDMAP-3.2-1]
	ID uint64 // returned in the completion
	Op Op

	// SG is the memory to send or write from, or to read into, in at most MaxSGE elements. The list
	// is copied, and the memory is lent until the completion was polled.
	SG []SGE

	// Remote is an address in the peer's memory: the target of OpWrite, the source of OpRead, or
	// the word of an atomic, whose address must be a multiple of 8.
	Remote     RemoteAddr
	Invalidate uint32  // STag that OpSendInvalidate, OpSendSEInvalidate or OpLocalInvalidate invalidates
	Immediate  [8]byte // for OpImmediate and OpImmediateSE
	Atomic     Atomic  // for OpFetchAdd and OpCmpSwap

	// Fence delays this request and all later requests until every Read and Atomic posted earlier
	// is complete.
	Fence bool
	// Unsignaled means no completion unless the request fails. When a later request completes, the
	// unsignaled request is complete too.
	Unsignaled bool
	// Inline copies the payload, at most MaxInline bytes, when the request is posted, so the memory
	// may be reused at once.
	Inline bool
	// Volatile means that the memory of a Send or Write may change before sending, for example
	// because another peer writes to the memory. An FPDU with a CRC is then made from a copy, so
	// the CRC is right for the sent bytes. Memory of a Guarded region needs no Volatile.
	Volatile bool
	// More means that another request follows soon, for example the Send announcing the data of a
	// Write. The request is not sent until a request without More is posted, [QueuePair.Flush] is
	// called, or a completion queue of the stream is polled.
	More bool

	// Requirements: Remote [DDP-5.2-6] [RDMAP-5.1-7] [RDMAP-5.2.1-9], Fence [RDMAP-5.5-9].
}

// A RecvWR is a buffer for one message of Send type or of Immediate Data. All of the buffer may be
// used as scratch space, even if the message is shorter, as with an io.Reader.
type RecvWR struct {
	ID uint64
	SG []SGE // as in SendWR; incoming bytes fill the pieces in order
}

// sendWQE is the entry of a SendWR in the send queue.
type sendWQE struct {
	id        uint64
	op        Op
	fence     bool
	signaled  bool
	volatile  bool
	status    Status
	stag      uint32 // STag to invalidate
	nsg       int
	inlineLen int
	length    uint64
	remote    RemoteAddr
	sg        [MaxSGE]SGE

	value  uint64 // original value of an atomic
	imm    [8]byte
	atomic Atomic
	inline [MaxInline]byte
}

func (w *sendWQE) reset() {
	clear(w.sg[:w.nsg])
	w.nsg, w.status, w.value, w.inlineLen = 0, StatusOK, 0, 0
}

// spareWQEs holds up to maxSpare unused entries of a stream's send queue for reuse.
type spareWQEs struct {
	mu   perturb.Mutex
	list []*sendWQE // guarded by mu
}

// maxSpare is the largest number of kept entries, as many as complete together in a large batch of
// short messages. Other entries go to a pool for all streams.
const maxSpare = 64

var sendWQEs = sync.Pool{New: func() any { return new(sendWQE) }}

// get fills ws with unused entries, from the pool if the list has too few.
func (s *spareWQEs) get(ws []*sendWQE) {
	s.mu.Lock()
	k := len(s.list) - min(len(ws), len(s.list))
	n := copy(ws, s.list[k:])
	clear(s.list[k:])
	s.list = s.list[:k]
	s.mu.Unlock()
	for i := n; i < len(ws); i++ {
		ws[i] = sendWQEs.Get().(*sendWQE)
	}
}

// put takes back and resets entries no longer in use.
func (s *spareWQEs) put(ws []*sendWQE) {
	for _, w := range ws {
		w.reset()
	}
	s.mu.Lock()
	k := min(len(ws), maxSpare-len(s.list))
	s.list = append(s.list, ws[:k]...)
	s.mu.Unlock()
	for _, w := range ws[k:] {
		sendWQEs.Put(w)
	}
}

// recvWQE is the entry of a RecvWR in a receive queue.
type recvWQE struct {
	id     uint64
	nsg    int
	length uint64
	sg     [MaxSGE]SGE
}

func (w *recvWQE) reset() {
	clear(w.sg[:w.nsg])
	w.nsg = 0
}
