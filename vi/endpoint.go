package vi

import (
	"sync/atomic"

	"viaduct/internal/regmem"
)

// An Endpoint is the provider's view of a VI during a connection. The provider takes send
// descriptors from the Endpoint, delivers messages into receive descriptors, and checks memory
// accesses.
//
// Only one goroutine at a time may call NextSend and StartSend, the methods for the front of the
// send queue. Also, only one goroutine at a time may call StartRecv. Other methods may be called
// from any goroutine. No method blocks. After Link.Stop has returned, only Break may be called, and
// has no effect.
type Endpoint struct {
	v      *VI
	link   Link
	direct directSender // the link, if it sends single messages directly; otherwise nil
	attrs  Attributes   // attributes of the VI, which do not change while it is connected
	domain *regmem.Domain
	agreed Agreement
	remote Address

	ahead     *lookahead   // created and owned by the caller of NextSend and StartSend
	recvBase  uint64       // receives consumed before this connection [VIA-2.3-8]
	readsOut  atomic.Int32 // number of RDMA Reads that have started and not finished
	stopSends atomic.Bool  // a send has failed at a reliable level, so no further send starts
	failed    atomic.Bool  // a receive was published with an error at a reliable level
}

// Attributes returns the attributes of the local VI.
func (e *Endpoint) Attributes() Attributes { return e.attrs }

// VI returns the connected VI.
func (e *Endpoint) VI() *VI { return e.v }

// RecvPosted returns how many receive descriptors were posted for the connection, including
// descriptors posted before set-up.
func (e *Endpoint) RecvPosted() uint64 { return e.v.recv.q.Posted() - e.recvBase }

// NextSend returns the send descriptor to start next. It returns nil if there is none, if the
// descriptor's fence must wait for RDMA Reads, or after a failed send at a reliable level.
func (e *Endpoint) NextSend() *Descriptor {
	if e.stopSends.Load() {
		return nil
	}
	a := e.ahead
	if a == nil {
		if e.v.send.q.Posted() == 0 {
			return nil
		}
		a = new(lookahead)
		e.ahead = a
	}
	if a.n == 0 && !e.lookAhead() {
		return nil
	}
	d := a.d[a.at]
	if d.Control&QueueFence != 0 && e.readsOut.Load() > 0 { // [VIA-3.7-1] [VIA-8.3-13]
		return nil
	}
	return d
}

// A lookahead holds the send descriptors to start next, so that one lock of the queue serves many
// descriptors. It belongs to the send role.
type lookahead struct {
	d     [16]*Descriptor
	at, n int    // index of the next descriptor, and number of descriptors
	seq   uint64 // sequence number of the next descriptor
}

// lookAhead fills the lookahead from the queue. It returns false if nothing is posted.
func (e *Endpoint) lookAhead() bool {
	a := e.ahead
	a.at = 0
	a.n, a.seq = e.v.send.q.PeekN(a.d[:])
	return a.n > 0
}

// StartSend starts the descriptor from NextSend. seq identifies the descriptor until FinishSend.
// bad has the error bits of the descriptor's check: if bad is not 0, the provider sends nothing of
// the descriptor and passes bad to FinishSend.
func (e *Endpoint) StartSend() (d *Descriptor, seq uint64, bad Status) {
	a := e.ahead
	if a == nil || a.n == 0 {
		panic("vi: StartSend without NextSend")
	}
	d, seq = a.d[a.at], a.seq // [VIA-4.4-1]
	a.d[a.at] = nil
	a.at, a.n, a.seq = a.at+1, a.n-1, a.seq+1
	e.v.send.q.MarkStarted(seq)
	return d, seq, e.started(d, e.checkSend(d))
}

// PostStarted posts a descriptor from a directSender, and starts it like StartSend. PostStarted
// returns false for ok, and posts nothing, if the descriptor would not be the next to start or must
// wait because of a fence. For a Send or RDMA Write of one segment, held pins the whole segment,
// and the caller releases held. Only the goroutine of StartSend may call PostStarted.
func (e *Endpoint) PostStarted(d *Descriptor) (seq uint64, held Memory, bad Status, ok bool) {
	if e.stopSends.Load() || d.Control&QueueFence != 0 && e.readsOut.Load() > 0 {
		return 0, Memory{}, 0, false
	}
	if seq, ok = e.v.send.q.PostStarted(d); !ok { // [VIA-4.4-1]
		return 0, Memory{}, 0, false
	}
	held, bad = e.holdSend(d)
	return seq, held, e.started(d, bad), true
}

// started marks d as started with bad as the result of the check, and returns bad.
func (e *Endpoint) started(d *Descriptor, bad Status) Status {
	if bad != 0 && e.attrs.Reliability.reliable() {
		e.stopSends.Store(true)
	}
	if d.Control.Op() == OpRDMARead {
		e.readsOut.Add(1)
	}
	return bad
}

// FinishSend completes a started send descriptor with error bits, 0 for success. Descriptors
// complete in order: a finished descriptor waits for unfinished earlier ones. broken reports an
// error published at a reliable level. The provider must then stop handling messages and call
// Break.
func (e *Endpoint) FinishSend(d *Descriptor, seq uint64, bad Status) (broken bool) { // [VIA-4.4-4] [VIA-1.2-2] [VIA-4.3-3]
	if d.Control.Op() == OpRDMARead {
		e.readsOut.Add(-1)
	}
	if bad != 0 {
		d.result |= bad
		if e.attrs.Reliability.reliable() {
			d.fatal = true
			e.stopSends.Store(true)
		}
	}
	return e.FinishSends(seq, seq+1)
}

// FinishSends completes the started Sends and RDMA Writes from number first to end-1 with success.
// None may be an RDMA Read. broken has the same meaning as for FinishSend.
func (e *Endpoint) FinishSends(first, end uint64) (broken bool) {
	e.v.send.completed(e.v.send.q.FinishRange(first, end))
	return e.broken()
}

// broken reports whether an error was published at a reliable level.
func (e *Endpoint) broken() bool { return e.failed.Load() || e.v.send.failed.Load() }

// FailSend is FinishSend with error bits, for a provider that knows only the number of the
// descriptor. It has no effect on a finished descriptor.
func (e *Endpoint) FailSend(seq uint64, bad Status) (broken bool) {
	var d *Descriptor
	if e.v.send.q.Update(seq, func(p **Descriptor) { d = *p }) {
		return e.FinishSend(d, seq, bad)
	}
	return e.broken()
}

// FailFaulted finds the first started send whose memory is unmapped, and completes it with a
// protection error. A provider calls FailFaulted after EFAULT from a system call with several
// sends, because the kernel does not report the faulting send.
func (e *Endpoint) FailFaulted() {
	q := &e.v.send.q
	for c := q.Counts(); c.Done < c.Started; c.Done++ {
		var gone *Descriptor
		q.Update(c.Done, func(d **Descriptor) {
			if e.faults(*d) {
				gone = *d
			}
		})
		if gone != nil {
			e.FinishSend(gone, c.Done, StatusProtectionError)
			return
		}
	}
}

// faults reports whether a page of the send's memory can't be read. It reads a byte of every page.
func (e *Endpoint) faults(d *Descriptor) bool {
	if d.Control.Op() == OpRDMARead {
		return false
	}
	var at Cursor
	for {
		ref, bad := e.Gather(Memory{}, d, &at, int(e.agreed.MaxTransferSize))
		if bad != 0 {
			return true
		}
		if ref.Len() == 0 {
			return false
		}
		var page [1]byte
		for i := 0; i < ref.Len(); i += pageStep {
			if regmem.Copy(page[:], ref.B()[i:i+1], true) != nil {
				ref.Release()
				return true
			}
		}
		ref.Release()
	}
}

// pageStep is not larger than the page size of any system.
const pageStep = 4 << 10

// Fenced reports whether the send to start next has a queue fence. If so, the provider must check
// the send queue again after the last read has finished.
func (e *Endpoint) Fenced() bool {
	d, _, ok := e.v.send.q.Peek()
	return ok && d.Control&QueueFence != 0
}

// StartRecv takes the next receive descriptor; ok is false if none is posted. seq identifies the
// descriptor until FinishRecv. bad has the error bits a check of the descriptor found.
func (e *Endpoint) StartRecv() (d *Descriptor, seq uint64, bad Status, ok bool) {
	d, seq, ok = e.v.recv.q.Start() // [VIA-4.1-1]
	if !ok {
		return nil, 0, 0, false
	}
	return d, seq, e.checkRecv(d), true
}

// StartRecvHeld is StartRecv and also pins the memory of a descriptor with one segment. held is
// empty for any other descriptor. The caller releases held.
func (e *Endpoint) StartRecvHeld() (d *Descriptor, seq uint64, held Memory, bad Status, ok bool) {
	d, seq, ok = e.v.recv.q.Start() // [VIA-4.1-1]
	if !ok {
		return nil, 0, Memory{}, 0, false
	}
	held, bad = e.holdRecv(d)
	return d, seq, held, bad, true
}

// A Delivery is the result of a receive descriptor.
type Delivery struct {
	Length      uint32 // bytes received
	Immediate   bool   // Data is valid
	Data        uint32 // immediate data
	RemoteWrite bool   // an RDMA Write of the peer consumed the descriptor
	Status      Status // error bits, 0 for success
}

// FinishRecv completes a receive descriptor with result r. All bytes of the message must be in
// place. broken has the same meaning as for FinishSend.
func (e *Endpoint) FinishRecv(d *Descriptor, seq uint64, r Delivery) (broken bool) {
	d.Length = r.Length
	d.ImmediateData = 0 // [VIA-3.6-3]
	d.result = StatusOpReceive | r.Status
	if r.RemoteWrite {
		d.result = StatusOpRemoteRDMAWrite | r.Status // [VIA-3.5-6]
	}
	if r.Immediate {
		d.ImmediateData = r.Data
		d.result |= StatusImmediate // [VIA-3.3-3] [VIA-3.6-2] [VIA-8.3-12]
	}
	e.v.recv.completed(e.v.recv.q.Finish(seq))
	if r.Status != 0 && e.attrs.Reliability.reliable() {
		e.failed.Store(true)
	}
	return e.broken()
}

// Target pins length bytes at addr of the region handle, after checking that the peer may write the
// bytes or, with write false, read the bytes. Target also checks the VI's own enables. ok is false
// if a check fails. held is as for Gather.
func (e *Endpoint) Target(held Memory, handle MemHandle, addr uint64, length uint64, write bool) (m Memory, ok bool) { // [VIA 1.5]
	need, ok := e.targetRights(write)
	if !ok {
		return Memory{}, false
	}
	return e.access(held, handle, addr, length, need)
}

// CheckTarget makes the checks of Target without a pin.
func (e *Endpoint) CheckTarget(handle MemHandle, addr uint64, length uint64, write bool) (ok bool) {
	need, ok := e.targetRights(write)
	return ok && e.v.nic.memory.Check(uint32(handle), addr, length, e.domain, nil, need) == regmem.OK
}

// targetRights returns the rights the region must give the peer. ok is false if the VI itself does
// not allow the access.
func (e *Endpoint) targetRights(write bool) (need regmem.Rights, ok bool) {
	if write {
		return regmem.RemoteWrite, e.attrs.EnableRDMAWrite // [VIA-1.5-7] [VIA-1.5-9]
	}
	return regmem.RemoteRead, e.attrs.EnableRDMARead // [VIA-1.5-8]
}

// access pins a range. If held is a pin of the same region, the range gets no pin of its own.
func (e *Endpoint) access(held Memory, handle MemHandle, addr, length uint64, need regmem.Rights) (Memory, bool) {
	if r := regmem.RegionOf(regmem.Ref(held)); r != nil && r.Handle() == uint32(handle) {
		m, out := regmem.Within(regmem.Ref(held), addr, length, e.domain, nil, need)
		return Memory(m), out == regmem.OK
	}
	m, out := e.v.nic.memory.Access(uint32(handle), addr, length, e.domain, nil, need)
	return Memory(m), out == regmem.OK
}

// AsyncError raises an asynchronous error of the VI.
func (e *Endpoint) AsyncError(code ErrorCode, op Control) { // [VIA 5]
	e.v.nic.async.raise(ErrorDescriptor{VI: e.v, OpCode: op, Resource: ResourceVI, Code: code})
}

// Break ends the connection from the provider's side. The VI moves to Error, posted descriptors are
// flushed, and the consumer gets the asynchronous error Connection Lost. If orderly, the peer has
// disconnected; otherwise started sends complete with a transport error. Break stops the Link with
// StopBroken. It does nothing if the connection has ended already. A goroutine inside a method of
// the provider's data path must not call Break.
func (e *Endpoint) Break(orderly bool) { // [VIA 2.2]
	v := e.v
	v.mu.Lock()
	if v.conn.Load() != e {
		v.mu.Unlock()
		return // the connection has ended already
	}
	v.keepTraffic(e.link)
	v.conn.Store(nil)
	v.orderly = orderly
	v.setStateLocked(Error) // [VIA-2.2-9] [VIA-5.2-3]
	v.nic.stop(e.link, StopBroken)
	v.keepTraffic(e.link)
	started := StatusTransportError
	if orderly || !e.attrs.Reliability.reliable() {
		started = StatusFlushed
	}
	v.send.flush(started)
	v.recv.flush(StatusFlushed)
	v.mu.Unlock()
	v.nic.async.raise(ErrorDescriptor{VI: v, Resource: ResourceVI, Code: ErrorConnLost}) // [VIA-4.6-16] [VIA-4.6-17]
	v.nic.end(e.link)
}
