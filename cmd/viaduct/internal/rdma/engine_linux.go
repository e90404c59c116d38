//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/budget"
	"viaduct/internal/wire/mpa"
	"viaduct/iwarp"
)

// An engine moves the work of a connected queue pair: entries of the send queue to the stream, and
// completions of the stream to the completion queues. It sleeps when there is nothing to do. Only
// then does the program have to ring the doorbell.
type engine struct {
	q  *queuePair
	iw *iwarp.QueuePair
	cq *iwarp.CompletionQueue

	link    *link // nil if this service does not serve the other end, or must not bypass the stream
	carrier carrier

	batch    []taken // send entries taken together
	at       int     // index in batch of the next entry
	gatherer gatherer
	bulk     bool      // the batch was a large one
	alone    int       // entries of batch before this index are executed one by one
	joint    []byte    // joined payload of several Writes
	held     bool      // the next entry waits for the link's other end
	since    time.Time // start of the wait; zero if no entry waits

	pending []posted // entries posted to the stream, in order
	head    int      // index in pending of the first entry that has not completed
	reads   int      // number of Reads in pending
	broken  bool     // an entry was invalid or refused: no more entries are taken
	wrs     []iwarp.SendWR
	sgs     [engineBatch][abi.MaxSGE]iwarp.SGE // memory for the lists of wrs
	cs      []iwarp.Completion
	out     []abi.Completion
	counts  struct{ taken, sent, received int } // send entries taken and completed; receives completed

	flushing  atomic.Bool // the program has set the error state: further entries are flushed
	closing   chan struct{}
	closeOnce sync.Once
	quit      chan struct{} // closed by detach: the rings must not be used any more
	quitOnce  sync.Once
	done      chan struct{} // closed when run has returned
	finished  bool          // owned by run until done is closed; the stream has ended, and gone was called
	gone      func()
}

// A posted is a send entry waiting for completion.
type posted struct {
	id        uint64
	op        abi.WROp
	signaled  bool
	status    abi.WCStatus // if not WCSuccess, the entry was not posted to the stream
	solicited bool
	buf       *gathered // the buffer with its payload, or nil
}

const (
	closeTimeout = time.Second
	engineSpin   = 20 * time.Microsecond
	// lookAgain is the time until a sleeping engine checks the ring once more, because the doorbell
	// may be missing. The library writes an entry, and then rings only if the previous entry is no
	// longer valid. Without a barrier between the two, the library's processor may check the
	// previous entry before the engine frees that entry, and make the new entry visible only after
	// the engine has checked the ring.
	lookAgain   = time.Millisecond
	engineBatch = 64
	// A batch of at least bulkBatch requests shows a program that does not wait for each request.
	// An engine without work then sleeps for the time doze and checks the ring itself, up to dozes
	// times, before requiring a doorbell. It does not spin, because on few processors the program
	// could then not post.
	bulkBatch = 8
	doze      = 30 * time.Microsecond
	dozes     = 10
	// engineLast bounds the steps of an engine between the peer's close and the engine's, because a
	// program may post without end.
	engineLast = 4 * maxQPWR / engineBatch
)

// config returns the configuration of a stream for the queue pair, with a new completion queue for
// both directions.
func (q *queuePair) config() (*iwarp.Config, error) {
	c := &iwarp.Config{
		Device: q.x.dev.iw, PD: q.pd.iw, Source: &q.recv,
		SendDepth: int(q.sq.n), RecvDepth: q.recv.depth(),
		CloseTimeout: closeTimeout, MaxIRD: maxReads, Interop: iwarp.Interop{MaxPrivate: mpa.MaxPrivate},
	}
	cq, err := c.Device.NewCQ(c.SendDepth + c.RecvDepth + 1)
	c.SendCQ, c.RecvCQ = cq, cq
	return c, err
}

// start serves the queue pair over a stream made with config. It fails if the queue pair is
// destroyed, in the error state, or already has a stream. Otherwise start calls gone once: after
// the stream has ended and everything was flushed, or when the queue pair is destroyed. l may be
// nil.
func (q *queuePair) start(iw *iwarp.QueuePair, l *link, gone func()) error {
	e := &engine{q: q, iw: iw, cq: iw.SendCQ(), link: l, gone: gone,
		closing: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}),
		batch: make([]taken, 0, engineBatch), wrs: make([]iwarp.SendWR, 0, engineBatch),
		cs: make([]iwarp.Completion, engineBatch)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.destroyed || q.engine != nil || q.state == abi.Err {
		return errors.New("rdma: the queue pair is not fit for a connection")
	}
	q.engine = e
	q.pd.add(iw)
	q.state = abi.RTS
	l.start()
	go e.run()
	return nil
}

// close makes the engine end the stream in an orderly way. It does not wait for the end.
func (e *engine) close() { e.closeOnce.Do(func() { close(e.closing) }) }

// flush ends the stream for the error state: requests not begun, and later requests, complete as
// flushed.
func (e *engine) flush() {
	e.flushing.Store(true)
	e.close()
}

// detach stops the engine, and waits until the engine no longer uses the rings. The program gets
// the end of the connection at once; another goroutine closes the stream.
func (e *engine) detach() {
	e.quitOnce.Do(func() { close(e.quit) })
	<-e.done
	if !e.finished {
		e.gone()
	}
	e.q.x.ends.Add(1)
	e.q.x.s.wg.Go(func() {
		e.iw.Close()
		e.q.pd.remove(e.iw)
		e.q.x.ends.Done()
	})
}

// quits reports whether the engine must not use the rings any more.
func (e *engine) quits() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

// last calls step while there is work, but at most engineLast times, because a program may post
// without end.
func (e *engine) last(step func() bool) {
	for n := engineLast; n > 0 && !e.quits() && step(); n-- {
	}
}

func (e *engine) run() {
	defer close(e.done)
	defer func() {
		e.link.cut()
		e.q.x.s.explain("queue pair %d: %d requests, %d doorbells, %d done, %d messages received; payload of %d requests read by %d calls", e.q.num, e.counts.taken, e.q.rung.Load(), e.counts.sent,
			e.counts.received+e.q.recv.linked(), e.gatherer.requests, e.gatherer.calls)
	}()
	var closed chan struct{}
	closing, peer := e.closing, e.iw.PeerClosed()
	shut := func() {
		if closed == nil {
			closed = make(chan struct{})
			e.link.cut()
			if e.at < len(e.batch) { // fetched entries are posted to the stream before its end
				e.step(false)
			}
			e.q.recv.hurry()
			go func() { e.iw.Close(); close(closed) }()
		}
	}
	idle := time.Time{}
	armed, looked, dozed := false, false, 0
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-closing: // closing must not wait until there is no work
			closing = nil
			shut()
		default:
		}
		if e.step(armed) {
			idle, armed, looked, dozed = time.Time{}, false, false, 0
			continue
		}
		if e.broken && e.head == len(e.pending) {
			// The entries before the invalid entry are done.
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
		if e.bulk && dozed < dozes && !e.held {
			dozed++
			t := unix.NsecToTimespec(int64(doze)) // Go's timers are too coarse: they have milliseconds
			unix.Nanosleep(&t, nil)
			continue
		}
		if !armed {
			// Both queues are checked once more after the stream and the program were asked for a
			// signal, because work may have arrived in between.
			e.cq.Arm(false)
			if !e.awaits() {
				e.q.sq.sleep()
			}
			armed = true
			continue
		}
		switch {
		case e.held:
			again.Reset(heldFor)
		case !looked:
			again.Reset(lookAgain)
		}
		select {
		case <-e.q.doorbell:
		case <-e.cq.Events():
		case <-again.C:
			if looked = !e.held; looked {
				continue
			}
		case <-closing:
			closing = nil
			shut()
		case <-peer:
			peer = nil
			e.last(func() bool { return e.step(false) }) // work that arrived before the end
			shut()
		case <-e.iw.Ended():
			shut()
			e.finish(closed)
			return
		case <-e.quit:
			return
		}
		idle, armed, looked = time.Time{}, false, false
	}
}

// finish reports the completions of an ended stream until closed is closed. Then finish flushes all
// other entries and calls gone. If the engine is detached meanwhile, finish returns at once.
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
	for ; e.at < len(e.batch); e.at++ { // entries that were fetched too late to be posted to the stream
		e.pending = append(e.pending, e.posted(&e.batch[e.at].entry))
	}
	for ; e.head < len(e.pending); e.head++ {
		e.emit(&e.pending[e.head], abi.WCFlush, 0)
	}
	e.flushOut()
	q.pd.remove(e.iw)
	err := e.iw.Err()
	q.x.s.explain("%v -> %v: ended: %v", e.iw.LocalAddr(), e.iw.RemoteAddr(), err)
	q.mu.Lock()
	q.engine = nil
	q.state = abi.Err
	q.flushLocked()
	q.mu.Unlock()
	if _, ok := errors.AsType[*iwarp.TerminateError](err); ok {
		q.async.raise(q.userHandle, abi.AsyncQPFatal)
	}
	if q.srq != nil {
		q.async.raise(q.userHandle, abi.AsyncQPLastWQE)
	}
	e.finished = true
	e.gone()
}

// step does the available work, and reports whether there was any. armed is true if the completion
// queue will wake the engine: then the stream's own goroutine receives, and step does not poll the
// stream.
func (e *engine) step(armed bool) bool {
	took := e.take()
	return e.complete(armed) || took
}

// heldFor is how soon an entry that had to wait is tried again.
const heldFor = 100 * time.Microsecond

// awaits reports whether a completion will wake the engine before the next request can start, so
// that the program need not ring. It is false while a Read is outstanding.
func (e *engine) awaits() bool { return e.head < len(e.pending) && e.reads == 0 && !e.broken }

// fetch takes up to room entries from the send queue as the next batch. If the batch has several
// entries, fetch reads the payload of the short entries with a single call.
func (e *engine) fetch(room int) {
	e.batch, e.at, e.alone = e.batch[:0], 0, 0
	var raw [abi.SQELen]byte
	for len(e.batch) < min(engineBatch, room) && e.q.sq.take(&raw) {
		e.batch = e.batch[:len(e.batch)+1]
		t := &e.batch[len(e.batch)-1]
		t.valid = abi.ParseSend(&raw, &t.entry)
		t.data, t.buf = nil, nil
	}
	e.counts.taken += len(e.batch)
	if len(e.batch) > 0 {
		e.bulk = len(e.batch) >= bulkBatch
	}
	if len(e.batch) > 1 {
		e.gatherer.gather(e.q, e.batch)
	}
}

func (e *engine) posted(s *abi.SendEntry) posted {
	return posted{id: s.ID, op: s.Op, signaled: e.q.req.SignalAll || s.Flags&abi.Signalled != 0,
		solicited: s.Flags&abi.Solicited != 0}
}

// take executes entries of the send queue over the link, or posts the entries to the stream. It
// reports whether there were any.
func (e *engine) take() bool {
	room := int(e.q.sq.n) - (len(e.pending) - e.head)
	if e.broken || room <= 0 {
		return false
	}
	if e.at == len(e.batch) {
		e.fetch(room)
	}
	e.held = false
	if e.flushing.Load() { // read after the entries, so that entries posted in the error state are always flushed
		return e.flushBatch()
	}
	begin := e.at
	wrs := e.wrs[:0]
	for ; e.at < len(e.batch) && room > 0 && !e.broken; e.at++ {
		t := &e.batch[e.at]
		p := e.posted(&t.entry)
		if t.valid && e.link != nil {
			if n := e.carryWrites(); n > 0 {
				e.at += n - 1
				continue
			}
			switch e.carry(t, &p) {
			case carried:
				continue
			case notYet:
				e.held = true
				e.flushOut()
				return e.at > begin
			}
			e.link.cut()
			e.link = nil
		}
		room--
		wr, status := iwarp.SendWR{}, abi.WCLocQPOp
		if t.valid {
			wr, status = e.request(t, e.sgs[len(wrs)][:0])
		}
		if status != abi.WCSuccess {
			p.status, e.broken = status, true
		} else {
			wrs = append(wrs, wr)
			if p.buf = t.buf; p.buf != nil {
				p.buf.uses++
			}
			if p.op == abi.WROpRead {
				e.reads++
			}
		}
		e.pending = append(e.pending, p)
	}
	if len(wrs) > 0 {
		n, err := e.iw.PostBatch(wrs)
		if err != nil {
			e.refused(len(wrs)-n, err)
		}
		clear(wrs)
	}
	if e.link != nil && e.at > begin {
		e.q.passed.last.Store(time.Now().UnixNano())
	}
	return e.at > begin
}

// flushBatch marks the fetched entries as flushed, so that they complete in order. It reports
// whether there were any.
func (e *engine) flushBatch() bool {
	n := len(e.batch) - e.at
	for ; e.at < len(e.batch); e.at++ {
		p := e.posted(&e.batch[e.at].entry)
		p.status = abi.WCFlush
		e.pending = append(e.pending, p)
	}
	return n > 0
}

// carryWrites executes the next Writes as one if they are adjacent in the peer's memory
// and their payload was already read. It returns their number, or 0 if the Writes must be executed
// separately.
func (e *engine) carryWrites() int {
	if e.at < e.alone {
		return 0
	}
	first := &e.batch[e.at].entry
	e.joint = e.joint[:0]
	n := 0
	for ; e.at+n < len(e.batch); n++ {
		t := &e.batch[e.at+n]
		b := t.payload()
		if !t.valid || t.entry.Op != abi.WROpWrite || t.entry.RKey != first.RKey || len(b) == 0 ||
			t.entry.RAddr != first.RAddr+uint64(len(e.joint)) {
			break
		}
		e.joint = append(e.joint, b...)
	}
	if n < 2 {
		return 0
	}
	if !e.carrier.write(e.link, e.q, first.RAddr, first.RKey, e.joint) {
		e.alone = e.at + n
		return 0
	}
	e.link.pass(e.q, abi.WROpWrite, len(e.joint))
	for i := range n {
		p := e.posted(&e.batch[e.at+i].entry)
		e.counts.sent++
		e.emit(&p, abi.WCSuccess, 0)
	}
	return n
}

// carry executes and completes an entry over the link. An entry that waits longer than notReadyFor
// for a receive is posted to the stream. The stream then ends.
func (e *engine) carry(t *taken, p *posted) carriage {
	s := &t.entry
	c := e.carrier.carry(e.link, e.q, s, t.payload(), e.iw.ORD() > 0, func() {
		e.counts.sent++
		e.link.pass(e.q, s.Op, e.carrier.size)
		n := 0
		switch s.Op {
		case abi.WROpRead:
			n = e.carrier.size
		case abi.WROpSend: // the peer may answer at once
			defer e.flushOut()
		}
		e.emit(p, abi.WCSuccess, uint32(n))
	})
	switch {
	case c == notYet && e.since.IsZero():
		e.since = time.Now()
		return c
	case c == notYet && time.Since(e.since) > notReadyFor:
		e.link.peerOf(e.q).recv.hurry()
		return byStream
	case c == notYet:
		return c
	}
	e.since = time.Time{}
	return c
}

// refused marks the last n requests in pending as not posted: the first gets a protection error,
// the others are flushed. If err reports the end of the stream, all are flushed. An invalid entry
// after the n entries is flushed, too.
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

// request converts an entry to a request of the stream. sg is the memory for the list of segments.
// If status is not WCSuccess, the entry cannot be posted and must complete with status.
func (e *engine) request(t *taken, sg []iwarp.SGE) (wr iwarp.SendWR, status abi.WCStatus) {
	s := &t.entry
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
		wr.SG = append(sg, iwarp.Buf(t.payload())) // the stream copies these bytes
		return wr, abi.WCSuccess
	}
	if t.data != nil {
		wr.SG = append(sg, iwarp.Buf(t.data))
		return wr, abi.WCSuccess
	}
	need := uint32(0)
	if s.Op == abi.WROpRead {
		need = abi.AccessLocalWrite
	}
	wr.SG, status = e.q.gather(sg, s.SGE[:s.NumSGE], need)
	return wr, status
}

// complete writes the completions of the stream to the program's completion queue. It returns false
// if there were none. armed has the same meaning as for step.
func (e *engine) complete(armed bool) bool {
	any := false
	// Unposted entries complete after all earlier entries.
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
		p := &e.pending[e.head]
		e.emit(p, statusOf(c.Status, c.Op), c.Len)
		e.gatherer.done(p.buf)
		p.buf = nil
		if p.op == abi.WROpRead {
			e.reads--
		}
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

// awaitSent polls for the completion of the only outstanding request before a received message is
// reported, because the message may be the answer to the request. The peer can be faster than the
// return of our send, and ib_send_lat -e checks only once, after the answer, for the completion of
// the request. e.cs already holds n completions; awaitSent returns their new number.
func (e *engine) awaitSent(n int) int {
	if n == 0 || n == len(e.cs) || len(e.pending)-e.head != 1 {
		return n
	}
	for i := range e.cs[:n] {
		if e.cs[i].Op != iwarp.OpRecv {
			return n
		}
	}
	var b budget.Budget // each time anew: the program waits for the message in any case
	if b.Poll(&budget.Sent, func() budget.Outcome {
		if e.cq.Len() > 0 {
			return budget.Found
		}
		return budget.Nothing
	}) != budget.Found {
		return n
	}
	return n + e.cq.PollN(e.cs[n:])
}

func (e *engine) received(c *iwarp.Completion) {
	id, ok := e.q.recv.completed(c.ID)
	if !ok {
		return // the source has ended: finish flushes the ring
	}
	e.flushOut()
	e.counts.received++
	e.q.rcq.push(abi.Completion{ID: id, Op: abi.WROpReceive, Status: statusOf(c.Status, c.Op), Bytes: c.Len,
		Inval: c.STag, HasInval: c.Invalidated, QP: e.q.num, Solicited: c.Solicited})
}

// emit adds the completion of a send entry to out, if the entry is signaled or has failed.
func (e *engine) emit(p *posted, status abi.WCStatus, n uint32) {
	if p.signaled || status != abi.WCSuccess {
		e.out = append(e.out, abi.Completion{ID: p.id, Op: p.op, Status: status, Bytes: n,
			QP: e.q.num, Solicited: p.solicited})
	}
}

// flushOut writes the emitted completions to the queue.
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
