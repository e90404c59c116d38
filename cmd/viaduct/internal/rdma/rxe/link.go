package rxe

import (
	"encoding/binary"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/rocecore"
	"viaduct/internal/roceudp"
	"viaduct/internal/wire/ib"
)

// A link is the connection of a queue pair with a queue pair of another supervisor or host. It is
// the rocecore.Host of pair. pair calls the host with the lock of pair held. The lock of pair is
// taken before the locks of the sides.
type link struct {
	qp   *QP
	pair *roceudp.Pair

	// Guarded by the lock of pair:
	recv   buffer // memory of the receive in progress
	badKey bool   // the key that the last request wanted to invalidate cannot be invalidated

	// Guarded by sendSide.mu:
	posted  []*sending // requests in progress, which are the entries at the head of the ring
	size    uint64     // bytes of payload of posted
	stalled bool       // the next entry waits until no request is in progress
	over    bool       // the queue pair was reset
}

// A sending is a request in progress.
type sending struct {
	posted
	request rocecore.Request
	buf     buffer
}

// connect creates the link to the peer of a queue pair that becomes ready to receive.
func (q *QP) connect(a *Attributes) error {
	own := q.port.GID(a.Path.SGID).addr()
	pair, err := q.fabric.pair(own, q.num)
	if err != nil {
		return err
	}
	l := &link{qp: q, pair: pair}
	q.link.Store(l)
	pair.Receive(l, a.Path.DGID.addr(), rocecore.Config{
		Transport: q.transport(), MTU: a.mtu(), PeerQPN: a.DestQP, PSN: ib.PSN(a.RecvPSN),
		Access: a.rights(), MaxServed: int(a.MaxDestReads), RNRTimer: a.MinRNR,
	})
	q.explain("queue pair %d: by RoCEv2 from %v", q.num, own)
	return nil
}

func (q *QP) transport() ib.Transport {
	if q.typ == UC {
		return ib.UC
	}
	return ib.RC
}

// mtu returns the payload of a packet in bytes.
func (a *Attributes) mtu() int { return 128 << min(max(a.MTU, 1), maxMTU) }

// rights returns the rights of the peer in the form of rocecore.
func (a *Attributes) rights() (r rocecore.Access) {
	for _, f := range [...]struct {
		bit uint32
		is  rocecore.Access
	}{
		{abi.AccessRemoteRead, rocecore.RemoteRead}, {abi.AccessRemoteWrite, rocecore.RemoteWrite}, {abi.AccessRemoteAtomic, rocecore.RemoteAtomic},
	} {
		if a.Access&f.bit != 0 {
			r |= f.is
		}
	}
	return r
}

// start makes the link ready to send, with the attributes a.
func (l *link) start(a *Attributes) {
	l.pair.Send(rocecore.SendConfig{PSN: ib.PSN(a.SendPSN), MaxReads: int(a.MaxReads),
		Timeout: rocecore.AckTimeout(a.Timeout),
		Retries: int(a.Retry), RNRRetry: int(a.RNRRetry)})
}

// end closes the link. Nothing completes after end returns.
func (l *link) end() {
	s := &l.qp.send
	s.mu.Lock()
	l.over = true
	s.mu.Unlock()
	l.pair.Close()
}

// postMost is the number of entries posted together. postRoom bounds the bytes a short caller may
// have in progress. Another goroutine posts the rest, because each packet costs a system call.
const (
	postMost = 32
	postRoom = 24 << 10
)

// work posts the entries of the send queue until there are none, an entry has to wait, or a short
// caller has to stop. Only a single goroutine calls work at a time.
func (l *link) work(short bool) progress {
	for {
		rs, p := l.take(short)
		if l.qp.failed() {
			l.pair.Fail() // after Fail, no more packets are sent
		}
		if len(rs) > 0 {
			l.pair.Post(rs...)
		}
		if p != more {
			return p
		}
	}
}

// take returns requests for the next entries of the send queue. An entry that needs no peer is
// executed when all entries before it are complete. p is more if further entries may follow at
// once.
func (l *link) take(short bool) (rs []*rocecore.Request, p progress) {
	q, s := l.qp, &l.qp.send
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		a := q.attrs.Load()
		if a.State == abi.SQD && len(l.posted) == 0 {
			q.endDraining()
		}
		switch {
		case s.ring.mem == nil || l.over, a.State != abi.RTS && a.State != abi.Err,
			s.ring.waiting() == uint32(len(l.posted)):
			return rs, idle
		case len(rs) == postMost:
			return rs, more
		}
		e := &s.entry
		e.take(s.ring.slot(s.ring.at + uint32(len(l.posted))))
		if short && l.size+e.size > postRoom {
			return rs, tooLong
		}
		status := q.unfit(a, e)
		if status == Success && !l.reachable(e) {
			status = LocalProtection
		}
		if status == Success && !e.op.local() {
			w := l.post(e)
			rs = append(rs, &w.request)
			continue
		}
		if l.stalled = len(l.posted) > 0; l.stalled {
			return rs, idle
		}
		switch {
		case a.State == abi.Err:
			status = Flushed
		case status == Success:
			status = q.performLocal(e)
		}
		q.finish(&e.posted, status)
		if status != Success && status != Flushed {
			q.explainFailure(a, &e.posted, status)
			q.fail()
		}
	}
}

// reachable reports whether the memory of an entry is registered with the rights the operation
// needs.
func (l *link) reachable(e *sendEntry) bool {
	ps := &l.qp.send.pieces
	defer ps.release()
	return ps.addAll(l.qp.memory, e.elements.list(), e.op.localRights())
}

// post converts an entry to a request, and records the request as in progress.
func (l *link) post(e *sendEntry) *sending {
	w := &sending{posted: e.posted}
	r := &w.request
	*r = rocecore.Request{Op: coreOp[e.op], Remote: rocecore.Place{VA: e.remote.addr, Key: e.remote.key}, Key: e.imm,
		SwapAdd: e.remote.swap, Compare: e.remote.compare, Fence: e.flags&flagFence != 0,
		Solicited: e.flags&flagSolicited != 0}
	switch e.op {
	case OpSendImm, OpWriteImm:
		r.HasImm = true
		binary.LittleEndian.PutUint32(r.Imm[:], e.imm)
	case OpFetchAdd:
		r.SwapAdd = e.remote.compare
	}
	if e.inline != nil {
		r.Buf = inline(append([]byte(nil), e.inline...))
	} else {
		w.buf = buffer{memory: l.qp.memory, need: e.op.localRights(),
			elements: append([]element(nil), e.elements.list()...), size: int(e.size)}
		r.Buf = &w.buf
	}
	l.posted = append(l.posted, w)
	l.size += e.size
	return w
}

// coreOp maps the operations that need a peer to operations of rocecore.
var coreOp = map[Op]rocecore.Op{
	OpWrite: rocecore.Write, OpWriteImm: rocecore.Write, OpSend: rocecore.Send, OpSendImm: rocecore.Send,
	OpSendInvalidate: rocecore.SendInvalidate,
	OpRead:           rocecore.Read, OpCompareSwap: rocecore.CompareSwap, OpFetchAdd: rocecore.FetchAdd,
}
