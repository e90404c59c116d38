package iwarp

import (
	"fmt"
	"slices"
	"sync/atomic"

	"viaduct/internal/queue"
	"viaduct/internal/regmem"
)

// A sendQueue holds requests from posting until completion. A slot is in use until the completion
// of its request is polled. Any goroutine may post. The send role begins requests; both roles
// complete requests.
type sendQueue struct {
	*shared
	cq *CompletionQueue // gets the completions

	work        queue.Work[*sendWQE]
	used        atomic.Int64 // slots in use
	spare       spareWQEs
	direct      directSend
	unpublished []Completion // completions to be published together; guarded by the lock of work
	waiting     atomic.Bool  // requests were posted with More, and sending was not started
}

// ring starts sending requests posted with More.
func (s *sendQueue) ring() {
	if s.waiting.Load() && s.waiting.Swap(false) {
		s.kick()
	}
}

// kick starts sending posted requests; before start-up is complete it does nothing. The caller must
// hold no role of frameio, because the completion handler may run.
func (s *sendQueue) kick() {
	if s.link.ready.Load() {
		s.link.fc.Kick()
		s.cq.deliver()
	}
}

// empty reports whether all requests are done and their completions published.
func (s *sendQueue) empty() bool { return s.work.Empty() && !s.direct.pending() }

// posted returns the number of posted requests that are not done.
func (s *sendQueue) posted() uint64 {
	c := s.work.Counts()
	n := c.Posted - c.Done
	if s.direct.pending() {
		n++
	}
	return n
}

// postRun is the largest number of requests posted under a single lock.
const postRun = 16

// post posts up to postRun requests without starting to send. It returns the number n of posted
// requests. If n is less than len(wrs), err is the error of Post for wrs[n].
func (s *sendQueue) post(wrs []SendWR) (n int, err error) {
	if !s.life.Load().posts() { // [DDP-6.2.1-2]
		return 0, s.life.closedErr()
	}
	room := s.reserve(len(wrs))
	var ws [postRun]*sendWQE
	s.spare.get(ws[:room])
	for n < room && err == nil {
		if err = s.fill(ws[n], &wrs[n]); err == nil {
			n++
		}
	}
	if n > 0 {
		s.work.PostN(ws[:n]) // never full, because sq has no limit of its own
		if s.life.Load() == lifeFlushed {
			s.flush() // the stream ended meanwhile
			s.cq.deliver()
		}
	}
	if n < room {
		s.used.Add(int64(n - room))
		s.spare.put(ws[n:room])
	} else if n < len(wrs) {
		if err = s.check(&wrs[n]); err == nil {
			err = ErrQueueFull
		}
	}
	return n, err
}

// postUnsignaled posts a request without a completion, unless it fails, and does not start to send.
// It returns the sequence number of the request. The errors are the errors of Post.
func (s *sendQueue) postUnsignaled(wr *SendWR) (seq uint64, err error) {
	if !s.life.Load().posts() {
		return 0, s.life.closedErr()
	}
	if s.reserve(1) == 0 {
		return 0, ErrQueueFull
	}
	var ws [1]*sendWQE
	s.spare.get(ws[:])
	if err := s.fill(ws[0], wr); err != nil {
		s.used.Add(-1)
		s.spare.put(ws[:])
		return 0, err
	}
	ws[0].signaled = false
	seq, _ = s.work.Post(ws[0]) // never full, because work has no limit of its own
	if s.life.Load() == lifeFlushed {
		s.flush() // the stream ended meanwhile
	}
	return seq, nil
}

// signal requests a completion for the unsignaled request seq. It returns false if the request is
// done already.
func (s *sendQueue) signal(seq uint64) bool {
	return s.work.Update(seq, func(w **sendWQE) { (*w).signaled = true })
}

// setStatus sets the status with which the request seq will complete.
func (s *sendQueue) setStatus(seq uint64, st Status) {
	s.work.Update(seq, func(w **sendWQE) { (*w).status = st })
}

// keep copies the unregistered memory of all requests except Reads and Atomics. The caller holds the
// send role.
func (s *sendQueue) keep() {
	s.work.Each(func(w **sendWQE) {
		if (*w).op.reads() {
			return
		}
		sg := (*w).sg[:(*w).nsg]
		for i := range sg {
			if sg[i].Region == nil {
				sg[i].Buf = slices.Clone(sg[i].Buf)
			}
		}
	})
}

// reserve reserves up to n slots of the send queue and returns their number; 0 means full.
func (s *sendQueue) reserve(n int) int {
	over := s.used.Add(int64(n)) - int64(s.set.sendDepth)
	if over <= 0 {
		return n
	}
	over = min(over, int64(n))
	s.used.Add(-over)
	return n - int(over)
}

// fill copies request wr to queue entry w. It returns the errors of Post, and may change w in
// any case.
func (s *sendQueue) fill(w *sendWQE, wr *SendWR) error {
	n, err := s.mem.checkList(wr.SG)
	if err == nil {
		err = s.checkOp(wr, n)
	}
	if err != nil {
		return err
	}
	w.id, w.op, w.fence, w.signaled, w.volatile = wr.ID, wr.Op, wr.Fence, !wr.Unsignaled, wr.Volatile
	w.remote, w.stag, w.length = wr.Remote, wr.Invalidate, n
	switch wr.Op {
	case OpImmediate, OpImmediateSE:
		w.imm = wr.Immediate
	case OpFetchAdd, OpCmpSwap:
		w.atomic = wr.Atomic
	}
	if wr.Inline {
		return w.copyInline(wr.SG, &s.mem)
	}
	w.nsg = copy(w.sg[:], wr.SG)
	return nil
}

// check returns the error of Post for wr, without considering the state of the stream.
func (s *sendQueue) check(wr *SendWR) error {
	n, err := s.mem.checkList(wr.SG)
	if err != nil {
		return err
	}
	return s.checkOp(wr, n)
}

// checkOp checks the other fields of a request with n bytes of payload.
func (s *sendQueue) checkOp(wr *SendWR, n uint64) error {
	switch wr.Op {
	case OpSend, OpSendInvalidate, OpSendSE, OpSendSEInvalidate, OpWrite:
		if n > MaxMessage || wr.Inline && n > MaxInline { // [DDP-5.2-2] [DDP-1.2-2]
			return fmt.Errorf("%w: %d bytes", ErrTooLong, n)
		}
		return nil
	case OpImmediate, OpImmediateSE:
		if !s.ext.Immediate { // [RDMAPX-1.1-2]
			return fmt.Errorf("%w: immediate data", ErrNotEnabled)
		}
	case OpFetchAdd, OpCmpSwap:
		if !s.ext.Atomic {
			return fmt.Errorf("%w: atomic operations", ErrNotEnabled)
		}
	case OpRead:
		if n > MaxMessage {
			return fmt.Errorf("%w: %d bytes", ErrTooLong, n)
		}
	case OpLocalInvalidate:
	default:
		return fmt.Errorf("%w: %v can't be posted", ErrInvalid, wr.Op)
	}
	if wr.Inline || n > 0 && wr.Op != OpRead {
		return fmt.Errorf("%w: %v has no payload", ErrInvalid, wr.Op)
	}
	if wr.Op.reads() {
		if s.reads.limit.Load() == 0 {
			return ErrNoReads
		}
		if s.life.peerEnd.has() {
			return ErrPeerClosed
		}
	}
	return nil
}

// copyInline copies the payload, the bytes of sg, into the entry.
func (w *sendWQE) copyInline(sg []SGE, mem *memory) error {
	for i := range sg {
		s := &sg[i]
		n := s.length()
		ref, out := s.pin(mem, regmem.Ref{}, 0, n, regmem.LocalRead)
		if out != regmem.OK {
			return fmt.Errorf("%w: %v", ErrInvalid, out)
		}
		err := regmem.Copy(w.inline[w.inlineLen:], ref.B(), ref.Guarded())
		ref.Release()
		if err != nil {
			return err
		}
		w.inlineLen += int(n)
	}
	return nil
}

// done records the completion of a request, for publish to publish. A successful unsignaled
// request has no completion and only frees the slot. The send queue calls done under the
// queue's lock, in the order of posting.
func (s *sendQueue) done(w *sendWQE) {
	if !w.signaled && w.status == StatusOK {
		s.used.Add(-1)
		return
	}
	c := Completion{ID: w.id, QP: s.qp, Op: w.op, Status: w.status, Value: w.value}
	if w.op == OpRead && w.status == StatusOK {
		c.Len = uint32(w.length)
	}
	if len(s.unpublished) == cap(s.unpublished) && len(s.unpublished) >= maxUnpublished {
		s.publish()
	}
	s.unpublished = append(s.unpublished, c) // [RDMAP-5.5-12]
}

// maxUnpublished is the largest number of completions of the send queue published together.
const maxUnpublished = 32

// publish publishes the recorded completions. The send queue calls publish under the queue's
// lock.
func (s *sendQueue) publish() {
	if len(s.unpublished) > 0 {
		s.cq.pushAll(s.unpublished)
		// Stale entries of the array refer only to this stream and keep nothing else alive.
		s.unpublished = s.unpublished[:0]
	}
}

// finish marks requests first to end-1 as done, and reuses the entries of requests that complete.
// Requests complete in the order of posting, so a done request may wait for earlier requests. If
// our direction is closing and no request is left, finish ends the direction.
func (s *sendQueue) finish(first, end uint64) {
	var ws [lookAhead]*sendWQE
	for n := len(ws); n == len(ws); first, end = 0, 0 {
		n = s.work.Retire(first, end, ws[:])
		s.spare.put(ws[:n])
	}
	if s.life.Load().closing() {
		s.maybeFinish()
	}
}

// maybeFinish ends our direction if a close is in progress, every request is done and the
// completion published, and every request of the peer is answered.
func (s *sendQueue) maybeFinish() {
	if s.empty() && s.inbound.Len() == 0 {
		s.life.finish()
	}
}

// flush completes all requests as flushed, in the order of posting.
func (s *sendQueue) flush() {
	s.flushDirect() // the direct Send was posted before all requests in the queue
	s.work.Flush(func(w **sendWQE, _ bool) {
		if (*w).status == StatusOK {
			(*w).status = StatusFlushed
		}
	})
	s.finish(0, 0)
}
