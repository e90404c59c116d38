package iwarp

import (
	"fmt"
	"slices"
	"sync"

	"viaduct/internal/regmem"
)

var recvWQEs = sync.Pool{New: func() any { return new(recvWQE) }}

func freeRecvWQE(w *recvWQE) {
	w.reset()
	recvWQEs.Put(w)
}

// Post adds a request to the send queue. It never waits for the peer. After an error the request
// was not posted, and the memory is not lent. The errors match:
//
//   - ErrQueueFull: SendDepth requests are posted whose completions were not polled;
//   - ErrInvalid, ErrRegistered: the request names invalid local memory;
//   - ErrTooLong: the payload exceeds MaxMessage, or MaxInline with Inline;
//   - ErrNoReads, ErrNotEnabled: the peer or the Config does not allow the operation;
//   - ErrPeerClosed: a Read or Atomic after the peer has closed its direction;
//   - ErrClosed: the stream is closed or has ended.
func (q *QueuePair) Post(wr SendWR) error {
	if !wr.More {
		if _, ok := q.sendDirect(&wr, !wr.Unsignaled); ok {
			q.sendCQ.deliver()
			return nil
		}
	}
	wrs := [1]SendWR{wr}
	if _, err := q.post(wrs[:]); err != nil {
		return err
	}
	if wr.More {
		q.waiting.Store(true)
	} else {
		q.kick()
	}
	return nil
}

// PostNow posts a request without More, for a caller who can use the result at once. If sent is
// true, the request is complete, and has no completion on the queue unless it failed. Otherwise the
// completion follows, even if Unsignaled is set. The errors are the errors of Post.
func (q *QueuePair) PostNow(wr SendWR) (sent bool, err error) {
	if n, ok := q.sendDirect(&wr, false); ok {
		sent = !q.direct.signal(n)
		q.sendCQ.deliver()
		return sent, nil
	}
	if !q.life.Load().posts() {
		return false, q.life.closedErr()
	}
	if q.reserve(1) == 0 {
		return false, ErrQueueFull
	}
	wr.Unsignaled = true
	var ws [1]*sendWQE
	q.spare.get(ws[:])
	if err := q.fillWQE(ws[0], &wr); err != nil {
		q.sqUsed.Add(-1)
		q.spare.put(ws[:])
		return false, err
	}
	seq, _ := q.sq.Post(ws[0]) // never full, because sq has no limit of its own
	if q.life.Load() == lifeFlushed {
		q.flushSends() // the stream ended meanwhile
	}
	q.Flush()
	return !q.sq.Update(seq, func(w **sendWQE) { (*w).signaled = true }), nil
}

// KeepSends copies the unregistered memory (SGE.Buf) of posted requests not yet sent. The caller
// may then reuse the memory at once, though the requests complete later. The memory of Reads and
// Atomics stays lent. KeepSends does not wait for the peer. Call it only after start-up.
func (q *QueuePair) KeepSends() {
	q.link.fc.WithSender(func() {
		q.sq.Each(func(w **sendWQE) {
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
	})
}

// PostBatch posts requests and starts sending them together. It returns the number n of posted
// requests. If n is less than len(wrs), the error is the reason why wrs[n] was refused.
func (q *QueuePair) PostBatch(wrs []SendWR) (n int, err error) {
	for n < len(wrs) && err == nil {
		var k int
		k, err = q.post(wrs[n:min(n+postRun, len(wrs))])
		n += k
	}
	if n > 0 {
		q.kick()
	}
	return n, err
}

// Flush sends the requests posted with More.
func (q *QueuePair) Flush() {
	if q.waiting.Load() {
		q.waiting.Store(false)
	}
	q.kick()
}

// postRun is the largest number of requests posted under a single lock.
const postRun = 16

// post posts up to postRun requests without starting to send. It returns the number n of posted
// requests. If n is less than len(wrs), err is the error of Post for wrs[n].
func (q *QueuePair) post(wrs []SendWR) (n int, err error) {
	if !q.life.Load().posts() { // [DDP-6.2.1-2]
		return 0, q.life.closedErr()
	}
	room := q.reserve(len(wrs))
	var ws [postRun]*sendWQE
	q.spare.get(ws[:room])
	for n < room && err == nil {
		if err = q.fillWQE(ws[n], &wrs[n]); err == nil {
			n++
		}
	}
	if n > 0 {
		q.sq.PostN(ws[:n]) // never full, because sq has no limit of its own
		if q.life.Load() == lifeFlushed {
			q.flushSends() // the stream ended meanwhile
			q.sendCQ.deliver()
		}
	}
	if n < room {
		q.sqUsed.Add(int64(n - room))
		q.spare.put(ws[n:room])
	} else if n < len(wrs) {
		if err = q.checkPost(&wrs[n]); err == nil {
			err = ErrQueueFull
		}
	}
	return n, err
}

// reserve reserves up to n slots of the send queue and returns their number; 0 means full.
func (q *QueuePair) reserve(n int) int {
	over := q.sqUsed.Add(int64(n)) - int64(q.set.sendDepth)
	if over <= 0 {
		return n
	}
	over = min(over, int64(n))
	q.sqUsed.Add(-over)
	return n - int(over)
}

// fillWQE copies request wr to queue entry w. It returns the errors of Post, and may change w in
// any case.
func (q *QueuePair) fillWQE(w *sendWQE, wr *SendWR) error {
	n, err := q.mem.checkList(wr.SG)
	if err == nil {
		err = q.checkOp(wr, n)
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
		return w.copyInline(wr.SG, &q.mem)
	}
	w.nsg = copy(w.sg[:], wr.SG)
	return nil
}

func (q *QueuePair) checkPost(wr *SendWR) error {
	n, err := q.mem.checkList(wr.SG)
	if err != nil {
		return err
	}
	return q.checkOp(wr, n)
}

// checkOp checks the other fields of a request with n bytes of payload.
func (q *QueuePair) checkOp(wr *SendWR, n uint64) error {
	switch wr.Op {
	case OpSend, OpSendInvalidate, OpSendSE, OpSendSEInvalidate, OpWrite:
		if n > MaxMessage || wr.Inline && n > MaxInline { // [DDP-5.2-2] [DDP-1.2-2]
			return fmt.Errorf("%w: %d bytes", ErrTooLong, n)
		}
		return nil
	case OpImmediate, OpImmediateSE:
		if !q.ext.Immediate { // [RDMAPX-1.1-2]
			return fmt.Errorf("%w: immediate data", ErrNotEnabled)
		}
	case OpFetchAdd, OpCmpSwap:
		if !q.ext.Atomic {
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
		if q.ord.Load() == 0 {
			return ErrNoReads
		}
		if q.life.peerEnd.has() {
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
		ref, out := s.pin(mem, 0, n, regmem.LocalRead)
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

// sendDone records the completion of a request, for sendsDone to publish. A successful unsignaled
// request has no completion and only frees the slot. The send queue calls sendDone under the
// queue's lock, in the order of posting.
func (q *QueuePair) sendDone(w *sendWQE) {
	if !w.signaled && w.status == StatusOK {
		q.sqUsed.Add(-1)
		return
	}
	c := Completion{ID: w.id, QP: q, Op: w.op, Status: w.status, Value: w.value}
	if w.op == OpRead && w.status == StatusOK {
		c.Len = uint32(w.length)
	}
	if len(q.unpublished) == cap(q.unpublished) && len(q.unpublished) >= maxUnpublished {
		q.sendsDone()
	}
	q.unpublished = append(q.unpublished, c) // [RDMAP-5.5-12]
}

// maxUnpublished is the largest number of completions of the send queue published together.
const maxUnpublished = 32

// sendsDone publishes the recorded completions. The send queue calls sendsDone under the queue's
// lock.
func (q *QueuePair) sendsDone() {
	if len(q.unpublished) > 0 {
		q.sendCQ.pushAll(q.unpublished)
		// Stale entries of the array refer only to this stream and keep nothing else alive.
		q.unpublished = q.unpublished[:0]
	}
}

// finish marks requests first to end-1 as done, and reuses the entries of requests that complete.
// Requests complete in the order of posting, so a done request may wait for earlier requests. If
// our direction is closing and no request is left, finish ends the direction.
func (q *QueuePair) finish(first, end uint64) {
	var ws [lookAhead]*sendWQE
	for n := len(ws); n == len(ws); first, end = 0, 0 {
		n = q.sq.Retire(first, end, ws[:])
		q.spare.put(ws[:n])
	}
	if q.life.Load().closing() {
		q.maybeFinish()
	}
}

func (q *QueuePair) flushSends() {
	q.flushDirect() // the direct Send was posted before all requests in the queue
	q.sq.Flush(func(w **sendWQE, _ bool) {
		if (*w).status == StatusOK {
			(*w).status = StatusFlushed
		}
	})
	q.finish(0, 0)
}

// PostRecv adds a buffer to the receive queue. Messages use buffers in the order of posting, and a
// message without a buffer ends the stream. With a shared receive queue, post there instead.
//
// Errors: ErrQueueFull, ErrInvalid, ErrRegistered, ErrPeerClosed, ErrClosed.
func (q *QueuePair) PostRecv(wr RecvWR) error {
	if q.srq != nil {
		return fmt.Errorf("%w: the stream has a shared receive queue", ErrInvalid)
	}
	if q.life.Load().ended() {
		return q.life.closedErr()
	}
	if q.life.peerEnd.has() {
		return ErrPeerClosed
	}
	w, err := newRecvWQE(&wr, &q.mem)
	if err != nil {
		return err
	}
	if err := q.rq.post(w); err != nil {
		freeRecvWQE(w)
		return err
	}
	if q.life.peerEnd.has() || q.life.Load() == lifeFlushed {
		q.flushRecvs()
	}
	return nil
}

func newRecvWQE(wr *RecvWR, mem *memory) (*recvWQE, error) {
	n, err := mem.checkList(wr.SG)
	if err != nil {
		return nil, err
	}
	w := recvWQEs.Get().(*recvWQE)
	w.id, w.length = wr.ID, n
	w.nsg = copy(w.sg[:], wr.SG)
	return w, nil
}

// flushRecvs completes the remaining receives with StatusFlushed, and calls the handler. The end of
// the stream and a PostRecv may call flushRecvs concurrently; completions still follow the order of
// posting. The caller must hold no role of frameio, because the handler may post.
func (q *QueuePair) flushRecvs() {
	q.flushing.Lock()
	q.flushRecvsLocked()
	q.flushing.Unlock()
	q.recvCQ.deliver()
}

func (q *QueuePair) flushRecvsLocked() {
	q.flushSource()
	for {
		w, ok := q.rq.take()
		if !ok {
			return
		}
		c := Completion{ID: w.id, QP: q, Op: OpRecv, Status: StatusFlushed}
		freeRecvWQE(w)
		q.recvCQ.push(&c)
	}
}
