package rxe

import (
	"encoding/binary"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

var _ rocecore.Host = (*link)(nil)

// remoteRights maps the accesses of a peer to the rights a region must grant.
var remoteRights = map[rocecore.Access]uint32{
	rocecore.RemoteRead: abi.AccessRemoteRead, rocecore.RemoteWrite: abi.AccessRemoteWrite,
	rocecore.RemoteAtomic: abi.AccessRemoteAtomic,
}

// find returns the region with the n bytes at p, with a hold for the caller to release, and their
// address in the region. The region is nil if the peer may not access the bytes.
func (l *link) find(p rocecore.Place, n uint64, need uint32) (Region, uint64) {
	q := l.qp
	if r, at, isWindow := q.space.find(q, p.Key, p.VA, n, need); isWindow {
		return r, at
	}
	return q.memory.Find(p.Key, p.VA, n, need), p.VA
}

// Check implements rocecore.Host.
func (l *link) Check(p rocecore.Place, n uint64, a rocecore.Access) rocecore.Verdict {
	r, _ := l.find(p, n, remoteRights[a])
	if r == nil {
		return rocecore.Refused
	}
	r.Release()
	return rocecore.Allowed
}

// Write implements rocecore.Host.
func (l *link) Write(p rocecore.Place, b []byte) rocecore.Verdict {
	r, at := l.find(p, uint64(len(b)), abi.AccessRemoteWrite)
	if r == nil {
		return rocecore.Refused
	}
	defer r.Release()
	if r.WriteAt(b, at) != nil {
		return rocecore.Refused
	}
	l.qp.received.Add(uint64(len(b)))
	return rocecore.Allowed
}

// Read implements rocecore.Host.
func (l *link) Read(p rocecore.Place, b []byte) rocecore.Verdict {
	r, at := l.find(p, uint64(len(b)), abi.AccessRemoteRead)
	if r == nil {
		return rocecore.Refused
	}
	defer r.Release()
	if r.ReadAt(b, at) != nil {
		return rocecore.Refused
	}
	return rocecore.Allowed
}

// Atomic implements rocecore.Host. The word has the byte order of the programs.
func (l *link) Atomic(op rocecore.Op, p rocecore.Place, swapAdd, compare uint64) (old uint64, v rocecore.Verdict) {
	r, at := l.find(p, atomicLen, abi.AccessRemoteAtomic)
	if r == nil {
		return 0, rocecore.Refused
	}
	defer r.Release()
	if p.VA%atomicLen != 0 {
		return 0, rocecore.Misaligned
	}
	l.qp.fabric.atomics.Lock()
	defer l.qp.fabric.atomics.Unlock()
	var b [atomicLen]byte
	if r.ReadAt(b[:], at) != nil {
		return 0, rocecore.Refused
	}
	old = binary.LittleEndian.Uint64(b[:])
	switch {
	case op == rocecore.FetchAdd:
		swapAdd += old
	case old != compare:
		return old, rocecore.Allowed
	}
	binary.LittleEndian.PutUint64(b[:], swapAdd)
	if r.WriteAt(b[:], at) != nil {
		return 0, rocecore.Refused
	}
	return old, rocecore.Allowed
}

// Invalidate implements rocecore.Host.
func (l *link) Invalidate(key uint32) rocecore.Verdict {
	if l.badKey = !l.qp.space.invalidate(key, l.qp.memory); l.badKey {
		return rocecore.Refused
	}
	return rocecore.Allowed
}

// NextReceive implements rocecore.Host.
func (l *link) NextReceive() (rocecore.Receive, bool) {
	r := &l.qp.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.qp.takeReceive() {
		return rocecore.Receive{}, false
	}
	l.recv.fill(l.qp.memory, &r.entry)
	return rocecore.Receive{ID: r.entry.id, Buf: &l.recv}, true
}

// fill makes b the memory of a receive entry. An invalid entry, with more elements than fit,
// accepts any message and fails at the first byte.
func (b *buffer) fill(m Memory, e *recvEntry) {
	b.memory, b.need, b.elements = m, abi.AccessLocalWrite, append(b.elements[:0], e.elements.list()...)
	b.size = int(e.elements.size())
	if !e.valid {
		b.size = maxSize
	}
}

// statusOf maps results to the statuses of completions.
var statusOf = map[rocecore.Status]Status{
	rocecore.OK: Success, rocecore.Flushed: Flushed, rocecore.LocalLength: LocalLength,
	rocecore.LocalProtection: LocalProtection,
	rocecore.BadResponse:     BadResponse, rocecore.RemoteInvalidRequest: RemoteInvalid,
	rocecore.RemoteAccess:    RemoteAccess,
	rocecore.RemoteOperation: RemoteOperation, rocecore.RetryExceeded: RetryExceeded,
	rocecore.RNRRetryExceeded: RNRRetryExceeded,
}

// RequestDone implements rocecore.Host. It moves the queue pair to the error state before the
// program sees a failed completion.
func (l *link) RequestDone(_ *rocecore.Request, c rocecore.Completion) {
	q, s := l.qp, &l.qp.send
	status := statusOf[c.Status]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring.mem == nil || l.over {
		return
	}
	w := l.posted[0]
	l.posted[0] = nil
	l.posted = l.posted[1:]
	l.size -= w.size
	switch status {
	case Success:
		q.sent.Add(w.size)
	case Flushed:
	default:
		q.explainFailure(q.attrs.Load(), &w.posted, status)
		q.fail()
	}
	q.finish(&w.posted, status)
	if len(l.posted) == 0 && (l.stalled || q.draining()) {
		l.stalled = false
		go q.kick(false)
	}
}

// Received implements rocecore.Host.
func (l *link) Received(_ rocecore.Receive, a rocecore.Arrival) {
	q := l.qp
	q.recv.mu.Lock()
	defer q.recv.mu.Unlock()
	if q.recv.closed || !q.recv.held {
		return
	}
	c := arrival(&a)
	if a.Status == rocecore.LocalProtection && !q.recv.entry.valid {
		c.status = LocalQPOperation
	}
	if a.Status == rocecore.OK && !a.Write {
		q.received.Add(uint64(a.Len))
	}
	q.finishReceive(&c)
}

// arrival returns the completion for the result of a receive.
func arrival(a *rocecore.Arrival) completion {
	if a.Status != rocecore.OK {
		return completion{kind: doneRecv, status: statusOf[a.Status], solicited: true}
	}
	c := completion{kind: doneRecv, length: uint32(a.Len), flags: hasGRH, solicited: a.Solicited, src: a.Source}
	if a.Write {
		c.kind = doneRecvWriteImm
	}
	if a.HasImm {
		c.flags, c.imm = c.flags|hasImmediate, binary.LittleEndian.Uint32(a.Imm[:])
	}
	if a.HasInv {
		c.flags, c.imm = c.flags|hasInvalidate, a.Key
	}
	return c
}

// Refused implements rocecore.Host.
func (l *link) Refused(nak ib.Syndrome) {
	event := abi.AsyncQPFatal
	switch {
	case nak == ib.NAKInvalidRequest || l.badKey:
		event = abi.AsyncQPRequest
	case nak == ib.NAKRemoteAccess:
		event = abi.AsyncQPAccess
	}
	l.qp.event(event)
}

// Failed implements rocecore.Host.
func (l *link) Failed(rocecore.Status) { l.qp.fail() }
