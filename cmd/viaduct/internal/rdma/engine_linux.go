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
	"viaduct/internal/wire/mpa"
	"viaduct/iwarp"
)

// An engine moves the work of a connected queue pair: entries of its send queue to the
// stream, completions of the stream to the completion queues. It sleeps when there is
// nothing to do, and then only is the doorbell rung.
type engine struct {
	q  *queuePair
	iw *iwarp.QueuePair
	cq *iwarp.CompletionQueue

	link    *link // nil if the other end is not served here, or not to be reached so
	carrier carrier

	batch    []taken // send entries that were taken together
	at       int     // the next of them
	gatherer gatherer
	bulk     bool      // there were many of them
	alone    int       // those before this one are carried out one by one
	joint    []byte    // payload of several Writes
	held     bool      // the next has to wait for the link's other end
	since    time.Time // of that wait

	pending []posted // what was posted to the stream, in order
	head    int      // of pending
	reads   int      // Reads of pending
	broken  bool     // an entry was wrong: nothing more is taken
	wrs     []iwarp.SendWR
	sgs     [engineBatch][abi.MaxSGE]iwarp.SGE // of wrs
	cs      []iwarp.Completion
	out     []abi.Completion
	counts  struct{ taken, sent, received int } // entries: taken, completed, and receives completed

	flushing  atomic.Bool // the program has set the error state: nothing more is carried out
	closing   chan struct{}
	closeOnce sync.Once
	quit      chan struct{} // closed by detach: leave the rings alone
	quitOnce  sync.Once
	done      chan struct{} // closed when run has returned
	finished  bool          // run's until done is closed; the stream has ended, and gone was called
	gone      func()
}

// A posted entry waits for its completion.
type posted struct {
	id        uint64
	op        abi.WROp
	signaled  bool
	status    abi.WCStatus // not WCSuccess: it was not posted to the stream
	solicited bool
	buf       *gathered // that its payload lies in
}

const (
	closeTimeout = time.Second
	engineSpin   = 20 * time.Microsecond
	// lookAgain is how long after it has gone to sleep an engine looks once more. The library looks whether
	// it has to ring behind the writing of its entry, and without a barrier: its processor may do so before
	// the entry is seen here, and while the one before was valid still.
	lookAgain   = time.Millisecond
	engineBatch = 64
	// bulkBatch is how many requests taken together show that the program has more of them than it waits for each.
	// An engine that lacks work then sleeps for a moment and looks again by itself, so often, before it has the
	// program ring: where processors are scarce the program could not post while the engine spun.
	bulkBatch = 8
	doze      = 30 * time.Microsecond
	dozes     = 10
	// engineLast is how many steps an engine makes when the peer has closed its direction,
	// before it closes the other: a program may go on posting for ever.
	engineLast = 4 * maxQPWR / engineBatch
)

// config is that of a stream for the queue pair.
func (q *queuePair) config() (*iwarp.Config, error) {
	c := &iwarp.Config{
		Device: q.x.dev.iw, PD: q.pd.iw, Source: &q.recv,
		SendDepth: int(q.sq.n), RecvDepth: q.recv.depth(),
		CloseTimeout: closeTimeout, MaxIRD: maxReads, MaxPrivate: mpa.MaxPrivate,
	}
	cq, err := c.Device.NewCQ(c.SendDepth + c.RecvDepth + 1)
	c.SendCQ, c.RecvCQ = cq, cq
	return c, err
}

// start begins to serve the queue pair over a stream made with its configuration. gone is called
// once, when the stream has ended and everything was flushed, or the queue pair is destroyed. The
// link may be nil.
func (q *queuePair) start(iw *iwarp.QueuePair, l *link, gone func()) error {
	e := &engine{q: q, iw: iw, cq: iw.SendCQ(), link: l, gone: gone,
		closing: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}),
		batch: make([]taken, 0, engineBatch), wrs: make([]iwarp.SendWR, 0, engineBatch), cs: make([]iwarp.Completion, engineBatch)}
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

// close ends the stream in order.
func (e *engine) close() { e.closeOnce.Do(func() { close(e.closing) }) }

// flush ends the stream, as the error state wants it: what has not begun by then, and what is
// posted later, completes as flushed.
func (e *engine) flush() {
	e.flushing.Store(true)
	e.close()
}

// detach stops the engine at once, which is the end of the connection for this side. The stream is
// closed later.
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
			if e.at < len(e.batch) { // the stream has them before it ends
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
		case <-closing: // which is not to wait until there is nothing to do
			closing = nil
			shut()
		default:
		}
		if e.step(armed) {
			idle, armed, looked, dozed = time.Time{}, false, false, 0
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
		if e.bulk && dozed < dozes && !e.held {
			dozed++
			t := unix.NsecToTimespec(int64(doze)) // Go's timers are of milliseconds
			unix.Nanosleep(&t, nil)
			continue
		}
		if !armed {
			// All is looked at once more after both sides were asked for a signal.
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
			e.last(func() bool { return e.step(false) }) // what came before the end
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
	for ; e.at < len(e.batch); e.at++ { // the step that gave them to the stream came too late
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

// step does what there is to do, and reports whether there was anything. Once signals were
// asked for, the connection is left to its own goroutine.
func (e *engine) step(armed bool) bool {
	took := e.take()
	return e.complete(armed) || took
}

// heldFor is how soon it is looked again whether an entry that had to wait can go.
const heldFor = 100 * time.Microsecond

// awaits reports whether the engine is woken by the end of what the stream has, before anything that comes
// behind it could go: then the program need not ring. Behind a Read something can.
func (e *engine) awaits() bool { return e.head < len(e.pending) && e.reads == 0 && !e.broken }

// fetch takes the next entries of the send queue, and reads what payload can be read together.
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
	return posted{id: s.ID, op: s.Op, signaled: e.q.req.SignalAll || s.Flags&abi.Signalled != 0, solicited: s.Flags&abi.Solicited != 0}
}

// take carries out entries of the send queue if there is a link, else it posts them to the stream.
func (e *engine) take() bool {
	room := int(e.q.sq.n) - (len(e.pending) - e.head)
	if e.broken || room <= 0 {
		return false
	}
	if e.at == len(e.batch) {
		e.fetch(room)
	}
	e.held = false
	if e.flushing.Load() { // read after the entries, so those posted in the error state find it set
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

// flushBatch completes the entries that were fetched as flushed, in their turn.
func (e *engine) flushBatch() bool {
	n := len(e.batch) - e.at
	for ; e.at < len(e.batch); e.at++ {
		p := e.posted(&e.batch[e.at].entry)
		p.status = abi.WCFlush
		e.pending = append(e.pending, p)
	}
	return n > 0
}

// carryWrites carries out the Writes that come next as one, if they lie behind each other in the peer's memory
// and their payload is there. It returns how many there were: none if they have to go
// one by one.
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
		if !t.valid || t.entry.Op != abi.WROpWrite || t.entry.RKey != first.RKey || len(b) == 0 || t.entry.RAddr != first.RAddr+uint64(len(e.joint)) {
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

// carry carries out an entry past the stream, and shows its end. What has to wait too long for a receive is
// left to the stream, which ends then.
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

// request makes the stream's request of an entry; sg is room for its list.
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
		wr.SG = append(sg, iwarp.Buf(t.payload())) // the stream copies it
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
