//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/iwarp"
)

// An engine moves the work of a connected queue pair: entries of its send queue to the
// stream, completions of the stream to the completion queues. It sleeps when there is
// nothing to do, and then only is the doorbell rung.
type engine struct {
	q  *queuePair
	iw *iwarp.QueuePair
	cq *iwarp.CompletionQueue

	pending []posted // send entries that were taken, in order
	head    int      // of pending
	broken  bool     // an entry was wrong: nothing more is taken
	wrs     []iwarp.SendWR
	cs      []iwarp.Completion
	out     []abi.Completion
	counts  struct{ taken, sent, received int } // entries: taken, completed, and receives completed

	closing   chan struct{}
	closeOnce sync.Once
	quit      chan struct{} // closed by detach: leave the rings alone
	quitOnce  sync.Once
	done      chan struct{} // closed when run has returned
	gone      func()
}

// A posted entry waits for its completion.
type posted struct {
	id        uint64
	op        abi.WROp
	signaled  bool
	status    abi.WCStatus // not WCSuccess: it was not posted to the stream
	solicited bool
}

const (
	closeTimeout = time.Second
	engineSpin   = 20 * time.Microsecond
	engineBatch  = 64
	// engineLast is how many steps an engine makes when the peer has closed its direction,
	// before it closes the other: a program may go on posting for ever.
	engineLast = 4 * maxQPWR / engineBatch
)

// config is that of a stream for the queue pair.
func (q *queuePair) config() (*iwarp.Config, error) {
	c := &iwarp.Config{
		Device: q.x.dev.iw, PD: q.pd.iw, Source: &q.recv,
		SendDepth: int(q.sq.n), RecvDepth: q.recv.depth(),
		CloseTimeout: closeTimeout, MaxIRD: maxReads,
	}
	cq, err := c.Device.NewCQ(c.SendDepth + c.RecvDepth + 1)
	c.SendCQ, c.RecvCQ = cq, cq
	return c, err
}

// start begins to serve the queue pair over a stream made with its configuration. gone is called
// once, when the stream has ended and everything was flushed, unless the queue
// pair was destroyed before.
func (q *queuePair) start(iw *iwarp.QueuePair, gone func()) error {
	e := &engine{q: q, iw: iw, cq: iw.SendCQ(), gone: gone,
		closing: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}),
		wrs: make([]iwarp.SendWR, 0, engineBatch), cs: make([]iwarp.Completion, engineBatch)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.destroyed || q.engine != nil || q.state == abi.Err {
		return errors.New("rdma: the queue pair is not fit for a connection")
	}
	q.engine = e
	q.state = abi.RTS
	go e.run()
	return nil
}

// close ends the stream in order.
func (e *engine) close() { e.closeOnce.Do(func() { close(e.closing) }) }

// detach stops the engine at once; the stream is closed behind. A program that
// is dying does not care for what it has not got.
func (e *engine) detach(dying bool) {
	e.quitOnce.Do(func() { close(e.quit) })
	<-e.done
	e.q.x.s.wg.Go(func() { e.iw.Close() })
}

// quits reports whether the engine is to leave the rings alone.
func (e *engine) quits() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

// last makes steps while there is anything to do, but not for ever: a program may go on posting.
func (e *engine) last(step func() bool) {
	for n := engineLast; n > 0 && !e.quits() && step(); n-- {
	}
}

func (e *engine) run() {
	defer close(e.done)
	defer func() {
		e.q.x.s.explain("queue pair %d: %d requests, %d done, %d messages received", e.q.num, e.counts.taken, e.counts.sent, e.counts.received)
	}()
	var closed chan struct{}
	closing, peer := e.closing, e.iw.PeerClosed()
	shut := func() {
		if closed == nil {
			closed = make(chan struct{})
			e.q.recv.hurry()
			go func() { e.iw.Close(); close(closed) }()
		}
	}
	idle := time.Time{}
	armed := false
	for {
		select {
		case <-e.quit:
			return
		case <-closing: // which is not to wait until there is nothing to do
			closing = nil
			shut()
		default:
		}
		if e.step(armed) {
			idle, armed = time.Time{}, false
			continue
		}
		if e.broken && e.head == len(e.pending) {
			// What the wrong entry stood behind is done.
			e.iw.Abort()
			shut()
		}
		now := time.Now()
		if idle.IsZero() {
			idle = now
		}
		if now.Sub(idle) < engineSpin {
			runtime.Gosched()
			continue
		}
		if !armed {
			// All is looked at once more after both sides were asked for a signal.
			e.cq.Arm(false)
			e.q.sq.sleep()
			armed = true
			continue
		}
		select {
		case <-e.q.doorbell:
		case <-e.cq.Events():
		case <-closing:
			closing = nil
			shut()
		case <-peer:
			peer = nil
			e.last(func() bool { return e.step(false) }) // what came before the end
			shut()
		case <-e.iw.Ended():
			shut()
			e.finish(closed)
			return
		case <-e.quit:
			return
		}
		idle, armed = time.Time{}, false
	}
}

// finish passes on what the stream still completes, and flushes the rest.
func (e *engine) finish(closed chan struct{}) {
	for over := false; ; {
		for e.complete(false) {
		}
		if over {
			break
		}
		select {
		case <-closed:
			over = true
		case <-e.cq.Events():
			e.cq.Arm(false)
		case <-time.After(10 * time.Millisecond): // completions that came before Arm
		case <-e.quit:
			return
		}
	}
	q := e.q
	for ; e.head < len(e.pending); e.head++ {
		e.emit(&e.pending[e.head], abi.WCFlush, 0)
	}
	e.flushOut()
	err := e.iw.Err()
	q.x.s.explain("%v -> %v: ended: %v", e.iw.LocalAddr(), e.iw.RemoteAddr(), err)
	q.mu.Lock()
	q.engine = nil
	q.state = abi.Err
	q.flushLocked()
	q.mu.Unlock()
	if _, ok := errors.AsType[*iwarp.TerminateError](err); ok {
		q.x.event(q.userHandle, abi.AsyncQPFatal)
	}
	if q.srq != nil {
		q.x.event(q.userHandle, abi.AsyncQPLastWQE)
	}
	e.gone()
}

// step does what there is to do, and reports whether there was anything. Once signals were
// asked for, the connection is left to its own goroutine.
func (e *engine) step(armed bool) bool {
	took := e.take()
	return e.complete(armed) || took
}

// take posts entries of the send queue to the stream.
func (e *engine) take() bool {
	var raw [abi.SQELen]byte
	var entry abi.SendEntry
	wrs := e.wrs[:0]
	room := int(e.q.sq.n) - (len(e.pending) - e.head)
	for len(wrs) < engineBatch && room > 0 && !e.broken && e.q.sq.take(&raw) {
		room--
		valid := abi.ParseSend(&raw, &entry)
		p := posted{id: entry.ID, op: entry.Op, signaled: e.q.req.SignalAll || entry.Flags&abi.Signalled != 0,
			solicited: entry.Flags&abi.Solicited != 0}
		wr, status := iwarp.SendWR{}, abi.WCLocQPOp
		if valid {
			wr, status = e.request(&entry)
		}
		if status != abi.WCSuccess {
			p.status, e.broken = status, true
		} else {
			wrs = append(wrs, wr)
		}
		e.pending = append(e.pending, p)
		e.counts.taken++
	}
	if len(wrs) > 0 {
		n, err := e.iw.PostBatch(wrs)
		if err != nil {
			e.refused(len(wrs)-n, err)
		}
		clear(wrs)
	}
	return len(wrs) > 0
}

// refused marks the last n entries as not posted: the first for a reason of its
// own, those behind as flushed. An entry that was wrong anyway stays the last.
func (e *engine) refused(n int, err error) {
	at := len(e.pending) - n
	if at > e.head && e.pending[len(e.pending)-1].status != abi.WCSuccess {
		at--
	}
	for i := at; i < len(e.pending); i++ {
		e.pending[i].status = abi.WCFlush
	}
	if !errors.Is(err, iwarp.ErrClosed) && !errors.Is(err, iwarp.ErrPeerClosed) && at < len(e.pending) {
		e.pending[at].status = abi.WCLocProt
	}
	e.broken = true
}

// request makes the stream's request of an entry.
func (e *engine) request(s *abi.SendEntry) (wr iwarp.SendWR, status abi.WCStatus) {
	wr.Fence = s.Flags&abi.ReadFence != 0
	wr.Remote = iwarp.RemoteAddr{STag: s.RKey, TO: s.RAddr}
	solicited := s.Flags&abi.Solicited != 0
	switch s.Op {
	case abi.WROpWrite:
		wr.Op = iwarp.OpWrite
	case abi.WROpRead:
		wr.Op = iwarp.OpRead
	case abi.WROpSend:
		wr.Op = iwarp.OpSend
		if solicited {
			wr.Op = iwarp.OpSendSE
		}
	case abi.WROpSendInv:
		wr.Op, wr.Invalidate = iwarp.OpSendInvalidate, s.RKey
		if solicited {
			wr.Op = iwarp.OpSendSEInvalidate
		}
	default:
		return wr, abi.WCLocQPOp
	}
	if s.Flags&abi.Inline != 0 {
		if s.Op == abi.WROpRead {
			return wr, abi.WCLocQPOp
		}
		wr.Inline = true
		wr.SG = []iwarp.SGE{iwarp.Buf(append([]byte(nil), s.Inline[:s.SGE[0].Length]...))}
		return wr, abi.WCSuccess
	}
	wr.SG, status = e.q.gather(nil, s.SGE[:s.NumSGE], s.Op == abi.WROpRead)
	return wr, status
}

// complete passes on completions of the stream; armed as in step.
func (e *engine) complete(armed bool) bool {
	any := false
	// Entries that were not posted have their turn when those before are done.
	for e.head < len(e.pending) && e.pending[e.head].status != abi.WCSuccess {
		p := &e.pending[e.head]
		e.emit(p, p.status, 0)
		e.head++
		any = true
	}
	n := 0
	if !armed || e.cq.Len() > 0 {
		n = e.cq.PollN(e.cs)
	}
	n = e.awaitSent(n)
	for i := range e.cs[:n] {
		c := &e.cs[i]
		if c.Op == iwarp.OpRecv || e.head == len(e.pending) {
			continue
		}
		e.emit(&e.pending[e.head], statusOf(c.Status, c.Op), c.Len)
		e.head++
		e.counts.sent++
		for e.head < len(e.pending) && e.pending[e.head].status != abi.WCSuccess {
			e.emit(&e.pending[e.head], e.pending[e.head].status, 0)
			e.head++
		}
	}
	for i := range e.cs[:n] {
		if c := &e.cs[i]; c.Op == iwarp.OpRecv {
			e.received(c)
		}
	}
	if e.head == len(e.pending) {
		e.pending, e.head = e.pending[:0], 0
	} else if e.head > 1024 {
		e.pending = append(e.pending[:0], e.pending[e.head:]...)
		e.head = 0
	}
	e.flushOut()
	return any || n > 0
}

// sentSoon is how long a message waits for the completion of the only request.
const sentSoon = 100 * time.Microsecond

// awaitSent gives the only request that is under way a moment to complete before a
// message is shown, which may be the answer to it: the peer can be faster than the
// return of the call that sends, and ib_send_lat -e looks once for the completion
// of its request when the answer has come. n completions are in e.cs already.
func (e *engine) awaitSent(n int) int {
	if n == 0 || n == len(e.cs) || len(e.pending)-e.head != 1 {
		return n
	}
	for i := range e.cs[:n] {
		if e.cs[i].Op != iwarp.OpRecv {
			return n
		}
	}
	for begin := time.Now(); time.Since(begin) < sentSoon; runtime.Gosched() {
		if e.cq.Len() > 0 {
			return n + e.cq.PollN(e.cs[n:])
		}
	}
	return n
}

func (e *engine) received(c *iwarp.Completion) {
	id, ok := e.q.recv.completed(c.ID)
	if !ok {
		return // the end of the source: the ring is flushed from here
	}
	e.flushOut()
	e.counts.received++
	e.q.rcq.push(abi.Completion{ID: id, Op: abi.WROpReceive, Status: statusOf(c.Status, c.Op), Bytes: c.Len,
		Inval: c.STag, HasInval: c.Invalidated, QP: e.q.num, Solicited: c.Solicited})
}

// emit shows the end of a send entry, if the program wants to know.
func (e *engine) emit(p *posted, status abi.WCStatus, n uint32) {
	if p.signaled || status != abi.WCSuccess {
		e.out = append(e.out, abi.Completion{ID: p.id, Op: p.op, Status: status, Bytes: n, QP: e.q.num, Solicited: p.solicited})
	}
}

// flushOut pushes what was emitted.
func (e *engine) flushOut() {
	if len(e.out) > 0 {
		e.q.scq.push(e.out...)
		e.out = e.out[:0]
	}
}

func statusOf(s iwarp.Status, op iwarp.Op) abi.WCStatus {
	switch s {
	case iwarp.StatusOK:
		return abi.WCSuccess
	case iwarp.StatusLocalAccess:
		return abi.WCLocProt
	case iwarp.StatusLength:
		return abi.WCLocLen
	case iwarp.StatusRemote:
		return abi.WCRemAccess
	}
	return abi.WCFlush
}
