package roce

import (
	"fmt"

	"viaduct/internal/regmem"
	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

// MaxSGE is the greatest number of elements in the gather or scatter list of a request.
const MaxSGE = 16

// MaxMessage is the greatest length in bytes of a message.
const MaxMessage = rocecore.MaxMessage

// An SGE names a piece of local memory: Len bytes at offset Off of Region, or the slice Buf if Region is
// nil. Memory that no peer is to touch need not be registered.
type SGE struct {
	Region *MemoryRegion
	Off    uint64 // bytes
	Len    uint64 // bytes
	Buf    []byte // lent like Region, until the completion was polled
}

// Buf returns the SGE of memory that is not registered.
func Buf(b []byte) SGE { return SGE{Buf: b} }

// An Op is the operation of a request.
type Op uint8

// The operations.
const (
	OpSend Op = iota
	OpSendInvalidate
	OpWrite
	OpRead
	OpFetchAdd
	OpCmpSwap

	// OpRecv is the operation of the completion of a receive, OpRecvWrite that of one which an RDMA Write
	// with immediate data has taken.
	OpRecv
	OpRecvWrite
)

var opNames = [...]string{"send", "send with invalidate", "write", "read", "fetch and add", "compare and swap", "receive", "receive of a write"}

// String returns the name of the operation.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("Op(%#x)", uint8(o))
}

// A RemoteAddr is a place in the peer's memory, as the peer told it.
type RemoteAddr struct {
	Addr uint64
	Key  uint32
}

// A SendWR is a request to send, write, read or change the peer's memory. The zero value is a Send of
// zero bytes.
type SendWR struct {
	ID uint64 // comes back in the completion
	Op Op

	// SG is the memory to send or write from, or to read into: at most MaxSGE elements. The list is copied,
	// the memory it names is lent until the completion was polled. An atomic operation puts there what the
	// word was, 8 bytes in the order of this machine, if it has elements.
	SG []SGE

	Remote     RemoteAddr // of a Write, Read or atomic operation
	Invalidate uint32     // key that OpSendInvalidate invalidates

	HasImm bool    // OpSend, OpWrite: Imm goes with the message
	Imm    [4]byte // big endian by convention

	SwapAdd uint64 // OpFetchAdd: what is added; OpCmpSwap: what is stored if the word equals Compare
	Compare uint64

	To   Endpoint // of a datagram
	QKey uint32   // of a datagram

	// Fence holds this request back until every Read and atomic operation posted earlier is complete.
	Fence bool
	// Solicited asks for an event at the peer.
	Solicited bool
	// Unsignaled asks for no completion unless the request fails. It is known to be complete when a later
	// one completes.
	Unsignaled bool
}

// A RecvWR is a buffer for one message. That of a datagram begins with 40 bytes that name the sender.
type RecvWR struct {
	ID uint64
	SG []SGE // as in SendWR; the pieces are filled in order
}

// A pieces is the memory of a request: its elements, one behind the other.
type pieces struct {
	q   *QueuePair
	sg  []SGE
	len int
}

// newPieces checks the elements of a request, and returns nil if they have no bytes.
func (q *QueuePair) newPieces(sg []SGE) (*pieces, error) {
	if len(sg) > MaxSGE {
		return nil, fmt.Errorf("%w: %d elements, at most %d", ErrInvalid, len(sg), MaxSGE)
	}
	total := uint64(0)
	for i := range sg {
		s := &sg[i]
		if s.Region == nil {
			total += uint64(len(s.Buf))
			continue
		}
		if s.Region.pd != q.pd {
			return nil, fmt.Errorf("%w: region of another domain", ErrInvalid)
		}
		if size := uint64(s.Region.r.Len()); s.Off > size || s.Len > size-s.Off {
			return nil, fmt.Errorf("%w: %d bytes at %d of a region of %d", ErrInvalid, s.Len, s.Off, size)
		}
		if !s.Region.r.Live() {
			return nil, ErrRegistered
		}
		total += s.Len
	}
	if total > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLong, total)
	}
	return &pieces{q, append([]SGE(nil), sg...), int(total)}, nil
}

// Len implements rocecore.Buffer.
func (s *pieces) Len() int { return s.len }

// ReadAt implements rocecore.Buffer.
func (s *pieces) ReadAt(p []byte, off int) error {
	return s.each(p, off, regmem.LocalRead, func(ref regmem.Ref, part []byte) error { return ref.CopyTo(part) })
}

// WriteAt implements rocecore.Buffer.
func (s *pieces) WriteAt(p []byte, off int) error {
	return s.each(p, off, regmem.LocalWrite, func(ref regmem.Ref, part []byte) error { return ref.CopyFrom(part) })
}

// each calls f for the elements that the bytes from off on are in, with the part of p that belongs there.
func (s *pieces) each(p []byte, off int, need regmem.Rights, f func(regmem.Ref, []byte) error) error {
	for i := range s.sg {
		e := &s.sg[i]
		n := len(e.Buf)
		if e.Region != nil {
			n = int(e.Len)
		}
		if off >= n {
			off -= n
			continue
		}
		n = min(n-off, len(p))
		if n == 0 {
			return nil
		}
		if err := e.use(s.q, off, p[:n], need, f); err != nil {
			return err
		}
		p, off = p[n:], 0
	}
	return nil
}

// use calls f for the bytes of the element from off on.
func (e *SGE) use(q *QueuePair, off int, p []byte, need regmem.Rights, f func(regmem.Ref, []byte) error) error {
	if e.Region == nil {
		return f(regmem.Of(e.Buf[off:off+len(p)]), p)
	}
	ref, out := e.Region.r.Access(e.Region.r.Base()+e.Off+uint64(off), uint64(len(p)), q.pd.dom, nil, need)
	if out != regmem.OK {
		return ErrRegistered
	}
	defer ref.Release()
	return f(ref, p)
}

// request returns the request of wr for the transport, once checked.
func (q *QueuePair) request(wr *SendWR) (*rocecore.Request, error) {
	if wr.Op >= OpRecv || q.cfg.Transport == UD && wr.Op != OpSend || q.cfg.Transport == UC && wr.Op != OpSend && wr.Op != OpWrite {
		return nil, fmt.Errorf("%w: %v on %v", ErrInvalid, wr.Op, q.cfg.Transport)
	}
	if wr.HasImm && wr.Op != OpSend && wr.Op != OpWrite {
		return nil, fmt.Errorf("%w: %v with immediate data", ErrInvalid, wr.Op)
	}
	buf, err := q.newPieces(wr.SG)
	if err != nil {
		return nil, err
	}
	if atomic := wr.Op == OpFetchAdd || wr.Op == OpCmpSwap; atomic && buf.len != 0 && buf.len != 8 {
		return nil, fmt.Errorf("%w: %v into %d bytes", ErrInvalid, wr.Op, buf.len)
	}
	if q.cfg.Transport == UD && buf.len > q.cfg.MTU {
		return nil, fmt.Errorf("%w: datagram of %d bytes, at most %d", ErrTooLong, buf.len, q.cfg.MTU)
	}
	r := &rocecore.Request{
		ID: wr.ID, Op: coreOps[wr.Op], Buf: buf, Remote: rocecore.Place{VA: wr.Remote.Addr, Key: wr.Remote.Key}, Key: wr.Invalidate,
		HasImm: wr.HasImm, Imm: ib.ImmDt(wr.Imm), SwapAdd: wr.SwapAdd, Compare: wr.Compare,
		Fence: wr.Fence, Solicited: wr.Solicited, Unsignaled: wr.Unsignaled,
	}
	if q.cfg.Transport == UD {
		if !wr.To.Addr.IsValid() || wr.To.Addr.Unmap().Is4() != q.dev.port.Addr().Is4() {
			return nil, fmt.Errorf("%w: datagram to address %v", ErrInvalid, wr.To.Addr)
		}
		r.To = rocecore.Destination{Addr: wr.To.Addr.Unmap(), QPN: wr.To.QPN, QKey: wr.QKey}
	}
	return r, nil
}

var coreOps = [...]rocecore.Op{OpSend: rocecore.Send, OpSendInvalidate: rocecore.SendInvalidate, OpWrite: rocecore.Write,
	OpRead: rocecore.Read, OpFetchAdd: rocecore.FetchAdd, OpCmpSwap: rocecore.CompareSwap}

var opOf = [...]Op{rocecore.Send: OpSend, rocecore.SendInvalidate: OpSendInvalidate, rocecore.Write: OpWrite,
	rocecore.Read: OpRead, rocecore.FetchAdd: OpFetchAdd, rocecore.CompareSwap: OpCmpSwap}
