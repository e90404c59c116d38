package roce

import (
	"fmt"

	"viaduct/internal/regmem"
	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

// MaxSGE is the greatest number of elements in the list of a request or receive.
const MaxSGE = 16

// MaxMessage is the greatest length in bytes of a message.
const MaxMessage = rocecore.MaxMessage

// An SGE names a piece of local memory: Len bytes at offset Off of Region, or the slice Buf if
// Region is nil. Memory that no peer accesses need not be registered.
type SGE struct {
	Region *MemoryRegion
	Off    uint64 // bytes
	Len    uint64 // bytes
	Buf    []byte // lent to the queue pair until the completion was polled
}

// Buf returns the SGE of a slice that is not registered.
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

	// OpRecv and OpRecvWrite occur in completions only. OpRecv is a receive a Send has filled,
	// OpRecvWrite a receive an RDMA Write with immediate data has used up.
	OpRecv
	OpRecvWrite
)

var opNames = [...]string{"send", "send with invalidate", "write", "read", "fetch and add",
	"compare and swap", "receive", "receive of a write"}

// String returns the name of the operation, or its number in hex.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("Op(%#x)", uint8(o))
}

// A RemoteAddr is a place in the peer's memory. The peer provides both values.
type RemoteAddr struct {
	Addr uint64
	Key  uint32
}

// A SendWR is a request to send a message, or to read or change the peer's memory. The zero value
// is a Send of zero bytes.
type SendWR struct {
	ID uint64 // returned in the completion
	Op Op

	// SG is the memory to send or write from, or to read into: at most MaxSGE elements. The list is
	// copied; the memory is lent until the completion was polled. An atomic operation stores the
	// old value of the word there, 8 bytes in native byte order, unless SG is empty.
	SG []SGE

	Remote     RemoteAddr // for Writes, Reads and atomic operations
	Invalidate uint32     // the key that OpSendInvalidate invalidates

	HasImm bool    // OpSend and OpWrite: send Imm with the message
	Imm    [4]byte // by convention big endian

	SwapAdd uint64 // OpFetchAdd: the addend; OpCmpSwap: the new value if the word equals Compare
	Compare uint64

	To   Endpoint // destination of a datagram
	QKey uint32   // key of a datagram

	// Fence delays this request until all Reads and atomic operations posted earlier are complete.
	Fence bool
	// Solicited requests an event at the peer.
	Solicited bool
	// Unsignaled suppresses the completion unless the request fails. The request is complete when a
	// later request completes.
	Unsignaled bool
}

// A RecvWR is a buffer for one message. In the buffer, 40 bytes of addresses precede a datagram, in
// the format of GRH in package ib.
type RecvWR struct {
	ID uint64
	SG []SGE // as in SendWR; a message fills the elements in order
}

// A pieces is the concatenated memory of a request or receive. It implements rocecore.Buffer.
type pieces struct {
	q   *QueuePair
	sg  []SGE
	len int
}

// newPieces checks the elements of a request and copies the list. The error wraps ErrInvalid or
// ErrTooLong, or is ErrRegistered.
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

// each calls f for every element that overlaps the len(p) bytes from offset off on, with the
// corresponding bytes of p. It returns the first error.
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

// use calls f for len(p) bytes of the element from offset off on.
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

// request checks wr and converts it to a request of package rocecore. The errors are those of Post.
func (q *QueuePair) request(wr *SendWR) (*rocecore.Request, error) {
	if wr.Op >= OpRecv || q.cfg.Transport == UD && wr.Op != OpSend ||
		q.cfg.Transport == UC && wr.Op != OpSend && wr.Op != OpWrite {
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
		ID: wr.ID, Op: coreOps[wr.Op], Buf: buf, Remote: rocecore.Place{VA: wr.Remote.Addr, Key: wr.Remote.Key},
		Key:    wr.Invalidate,
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

var coreOps = [...]rocecore.Op{OpSend: rocecore.Send, OpSendInvalidate: rocecore.SendInvalidate,
	OpWrite: rocecore.Write,
	OpRead:  rocecore.Read, OpFetchAdd: rocecore.FetchAdd, OpCmpSwap: rocecore.CompareSwap}

var opOf = [...]Op{rocecore.Send: OpSend, rocecore.SendInvalidate: OpSendInvalidate, rocecore.Write: OpWrite,
	rocecore.Read: OpRead, rocecore.FetchAdd: OpFetchAdd, rocecore.CompareSwap: OpCmpSwap}
