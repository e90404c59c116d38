package iwarp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/sock"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// An ending is the way a stream ends on the wire.
type ending uint8

const (
	endTerminate ending = iota // our Terminate, then FIN [RDMAP-6.2.1-4]
	endQuiet                   // FIN [I-37]
	endLate                    // the FIN was sent before; the peer's end is not awaited [I-33]
	endAbort                   // reset
)

// errNoAnswer is the cause if a request of the peer arrives too late to be answered.
var errNoAnswer = errors.New("iwarp: request of the peer after our direction was closed")

// fault ends the stream because of an error found by this side. A Terminate reports the error to
// the peer, unless our direction is not open yet or has ended. Only the first fault counts.
// [RDMAP-6.2.1-1] [RDMAP-7-1] [RDMAP-7.1-1] [RDMAP-7.1-5] [DDP-6.2.2-1] [DDP-6.2.2-3] [DDP-6.2.2-4]
// [DDP-6.2-1] [DDP-7-1] [I-34] [I-41]
func (q *QueuePair) fault(t rdmap.Terminate, cause error) {
	body := t.Append(nil)
	err := terminateError(t, false, body, cause)
	if q.sendOpen.Load() && !q.life.Load().finished() { // [I-38]
		q.end(err, endTerminate, &body)
	} else {
		q.endWith(err, endQuiet)
	}
}

// endWith ends the stream with err and without a Terminate.
func (q *QueuePair) endWith(err error, how ending) { q.end(err, how, nil) }

// end ends the stream with err; only the first call has an effect. The methods of frameio.Protocol
// may call end although they must not block, because tearDown waits in a separate goroutine.
func (q *QueuePair) end(err error, how ending, term *[]byte) {
	if q.markEnd(err, how, term) {
		if q.ready.Load() {
			q.fc.Go(func() { q.tearDown(how) })
		} else {
			go q.tearDown(how)
		}
	}
}

// markEnd marks the stream as ended. It returns false if the stream had ended before. After true
// the caller runs tearDown in a goroutine that may wait. term is the Terminate to send, or nil.
func (q *QueuePair) markEnd(err error, how ending, term *[]byte) bool {
	q.mu.Lock()
	if q.err != nil {
		q.mu.Unlock()
		q.log.Debug("later cause ignored", "err", err)
		return false
	}
	q.err = err
	q.term.Store(term) // Set term before the state: after the state has changed, only term is sent.
	lifeTable.Move(&q.life, lifeEnd)
	for _, t := range q.timers {
		t.Stop()
	}
	q.timers, q.limit = nil, nil
	q.mu.Unlock()

	q.logEnd(err, how)
	q.ended.happen()
	return true
}

func (q *QueuePair) logEnd(err error, how ending) {
	if !q.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	switch {
	case errors.Is(err, ErrClosed) || errors.Is(err, io.EOF):
		q.log.Info("stream closed", "remote", q.RemoteAddr().String())
	case how == endTerminate:
		q.log.Warn("terminate sent", "remote", q.RemoteAddr().String(), "err", err)
	default:
		q.log.Warn("stream ended", "remote", q.RemoteAddr().String(), "err", err)
	}
}

// tearDown ends the connection and releases everything: it closes the peer's windows, flushes
// posted requests, and then ends the TCP stream.
func (q *QueuePair) tearDown(how ending) {
	if q.ready.Load() {
		if how == endTerminate {
			q.fc.Kick()
		}
		q.fc.Quiesce()
	}
	q.windows.closeAll()
	q.flushAll()
	q.callHandlers() // call handlers now, because the end of the TCP stream may wait for the peer
	if q.ready.Load() {
		// [RDMAP-6.2.1-3] [RDMAP-7-2] [RDMAP-7-3] [DDP-3-9] [DDP-3-11] [DDP-6.2-2]
		q.endWire(how)
	}
	q.wg.Wait()
	q.flushAll() // a local invalidation may have finished only now
	q.callHandlers()
	q.sendCQ.detach(q, q.set.sendDepth)
	q.recvCQ.detach(q, q.set.recvDepth)
	q.mem.dev.remove(q)
	q.gone.happen()
}

// flushAll completes every posted request. The call that posts a later request flushes the request.
func (q *QueuePair) flushAll() {
	// The lock is held while the state changes. A concurrent PostRecv, on seeing the new state,
	// waits for the lock, so later receives are flushed after earlier ones.
	q.flushing.Lock()
	defer q.flushing.Unlock()
	lifeTable.Move(&q.life, lifeFlush)
	q.flushSends()                // [DDP-6.2.2-2] [RDMAP-5.4-7] [DDP-3-3]
	if w := q.rx.recv; w != nil { // a message was in progress
		q.completeRecv(StatusFlushed, 0)
	}
	if len(q.rx.done) > 0 {
		q.recvCQ.pushAll(q.rx.done)
		q.rx.done = nil
	}
	q.flushRecvsLocked() // [DDP-6.2.2-2] [RDMAP-6.2.1-2]
}

func (q *QueuePair) endWire(how ending) {
	switch how {
	case endTerminate:
		t := time.NewTimer(terminateTimeout)
		defer t.Stop()
		select {
		case <-q.termSent.C():
		case <-q.txFailed.C():
		case <-t.C:
			q.fc.Abort()
		}
		fallthrough
	case endQuiet:
		// Bytes still arriving are read and dropped: closing a socket with unread input would reset
		// the connection and destroy the Terminate on the way.
		q.fc.Shutdown()
		q.fc.CloseAfter(drainTimeout) // [I-36]
	case endLate:
		q.fc.Close()
	default:
		q.fc.Reset()
	}
}

// Failed implements [frameio.Protocol]. The end of the stream between messages closes the peer's
// direction in order; any other err is a lost connection. [I-32] [MPA-8-1] [RDMAP-6.2-2]
func (e *engine) Failed(err error) {
	q := (*QueuePair)(e)
	if q.life.Load().ended() {
		q.sendFailed()
		return
	}
	if err == io.EOF {
		_, open := q.rx.queues[rdmap.QueueSend].Open()
		if !open && q.reads.Len() == 0 {
			q.peerClosed()
			return
		}
		err = io.ErrUnexpectedEOF
	}
	if err == io.ErrUnexpectedEOF { // our direction is still open
		q.fault(rdmap.TerminateMPA(uint8(mpa.CodeClosed)), err)
		return
	}
	q.sendFailed()
	q.endWith(lostError(err), endAbort)
}

// SendFailed implements [frameio.SendFailer]. It ends the stream after a failure of the sending
// direction, possibly after the peer has closed the other direction in order.
func (e *engine) SendFailed(err error) {
	q := (*QueuePair)(e)
	q.sendFailed()
	if !q.life.Load().ended() {
		q.endWith(lostError(err), endAbort)
	}
}

func (q *QueuePair) sendFailed() { q.txFailed.happen() }

// peerClosed records the orderly close of the peer's direction. Our direction stays open until our
// own close, unless Config.EndWithPeer is set. [DDP-6.2.1-4] [DDP-6.2.1-5] [I-32]
func (q *QueuePair) peerClosed() {
	_, to := lifeTable.Move(&q.life, lifePeerClose)
	q.peerEnd.happen()
	if q.log.Enabled(context.Background(), slog.LevelDebug) {
		q.log.Debug("peer closed", "remote", q.RemoteAddr().String())
	}
	q.flushRecvs()
	switch {
	case to == lifeDone:
		q.endInOrder()
	case q.set.endWithPeer:
		q.endWith(io.EOF, endQuiet)
	}
}

// endInOrder ends a stream after the end of both directions. If a Close is waiting, Close ends the
// stream instead.
func (q *QueuePair) endInOrder() {
	if !q.closer.Load() {
		q.endWith(io.EOF, endQuiet)
	}
}

// CloseWrite closes our direction in order: posted requests are still sent, Reads wait for their
// data, received requests of the peer are answered, and then TCP's FIN follows. No more requests
// can be posted to the send queue, and receiving continues. CloseWrite does not wait. The error
// matches ErrClosed if the stream has ended.
func (q *QueuePair) CloseWrite() error { // [DDP-6.2.1-1] [DDP-6.2.1-6] [DDP-6.2.1-7] [MPA-7.2-1] [I-33]
	err := q.closeWrite()
	if err == nil {
		q.unpoll()
	}
	return err
}

// closeWrite does the work of CloseWrite for a caller who polls the connection, or calls unpoll
// afterwards. It returns nil if our direction is already closing or closed.
func (q *QueuePair) closeWrite() error {
	if from, to := lifeTable.Move(&q.life, lifeClose); from == to {
		if to.ended() {
			return q.closedErr()
		}
		return nil
	}
	q.Flush()
	q.maybeFinish()
	q.sendCQ.deliver() // publishes the completions of a concurrent Post whose request Flush has sent
	return nil
}

// maybeFinish ends our direction if a close is in progress, every request is done and the
// completion published, and every request of the peer is answered.
func (q *QueuePair) maybeFinish() {
	if !q.sq.Empty() || q.direct.pending() || q.inbound.Len() > 0 {
		return
	}
	from, to := lifeTable.Move(&q.life, lifeFinish)
	if from == to {
		return
	}
	q.fc.Shutdown()
	q.drained.happen()
	if to == lifeDone {
		q.endInOrder()
	}
}

// Close ends the stream in order and waits for the end: Close closes our direction like
// [QueuePair.CloseWrite], then waits for the peer, who may continue to send before closing too.
// Close waits for at most Config.CloseTimeout, 5 s by default, and then flushes the remaining
// requests. A peer that does not close costs time, but no data. If our own direction did not end
// within CloseTimeout, the connection is reset. No request completes after Close has returned. A
// second Close waits for the first. The error is always nil.
func (q *QueuePair) Close() error { // [RDMAP-6.2-1] [I-33]
	q.closer.Store(true)
	q.CloseWrite()
	if !q.ready.Load() {
		q.endWith(ErrClosed, endAbort)
	}
	if how, err := q.awaitEnd(); q.markEnd(err, how, nil) {
		q.tearDown(how)
	}
	<-q.gone.C()
	return nil
}

func init() {
	attend.CloseSoon = func(qp any) bool { return qp.(*QueuePair).closeSoon() }
}

// closeSoon closes the stream like Close if both directions end within 100 us, and returns true.
// Otherwise it returns false, and the stream must still be closed; our direction is closing or has
// ended.
func (q *QueuePair) closeSoon() bool {
	q.closer.Store(true)
	if q.closeWrite() != nil || !q.ready.Load() {
		return false
	}
	done := sock.Soon(func() bool {
		q.poll()
		return q.drained.has() && q.peerEnd.has() || q.ended.has()
	})
	if !done || !q.markEnd(io.EOF, endQuiet, nil) {
		q.unpoll()
		return false
	}
	q.tearDown(endQuiet)
	return true
}

// awaitEnd waits until both directions have ended, the stream has ended, or Config.CloseTimeout has
// passed; a negative CloseTimeout never passes. It returns how Close must end the stream, and the
// error for [QueuePair.Err].
func (q *QueuePair) awaitEnd() (ending, error) {
	if q.drained.has() && q.peerEnd.has() {
		return endQuiet, io.EOF
	}
	var late <-chan time.Time
	if d := q.set.closeTimeout; d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-q.drained.C():
	case <-q.ended.C():
		return endQuiet, ErrClosed
	case <-late:
		return endAbort, ErrClosed
	}
	select {
	case <-q.peerEnd.C():
		return endQuiet, io.EOF
	case <-q.ended.C():
		return endQuiet, ErrClosed
	case <-late:
		return endLate, ErrClosed
	}
}

// Abort resets the connection at once, without a Terminate. Posted requests are flushed. Abort does
// not wait for the flush; a later Close does.
func (q *QueuePair) Abort() {
	q.endWith(ErrClosed, endAbort)
}

// after calls f in a new goroutine after d, unless the stream ends earlier. If the stream has ended
// already, after returns nil and never calls f.
func (q *QueuePair) after(d time.Duration, f func()) *time.Timer {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return nil
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		q.mu.Lock()
		q.forgetLocked(t)
		q.mu.Unlock()
		f()
	})
	q.timers = append(q.timers, t)
	return t
}

// forgetLocked removes a fired or stopped timer, so that the timer takes no memory while the stream
// continues.
func (q *QueuePair) forgetLocked(t *time.Timer) {
	if i := slices.Index(q.timers, t); i >= 0 {
		if q.timers = slices.Delete(q.timers, i, i+1); len(q.timers) == 0 {
			q.timers = nil
		}
	}
}

// limitFirst ends the stream if the peer's first FPDU does not arrive within d. [I-14]
func (q *QueuePair) limitFirst(d time.Duration) {
	t := q.after(d, func() {
		if q.stats.recvFPDUs.Load() == 0 {
			q.endWith(ErrTimeout, endAbort)
		}
	})
	q.mu.Lock()
	q.limit = t
	q.mu.Unlock()
}

// firstCame stops the timer of limitFirst, because the first FPDU has arrived.
func (q *QueuePair) firstCame() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.limit; t != nil {
		q.limit = nil
		t.Stop()
		q.forgetLocked(t)
	}
}

// watchIdle ends the stream when nothing was sent or received for d. It first checks after rest,
// and then again at the earliest time at which d can have passed. [SEC-6.4.2-1] [I-71]
func (q *QueuePair) watchIdle(d, rest time.Duration) {
	q.after(rest, func() {
		idle := time.Since(q.lastActivity())
		if idle >= d {
			q.endWith(ErrTimeout, endAbort)
			return
		}
		q.watchIdle(d, d-idle)
	})
}

// firstSent is called after the first FPDU was sent. It adds an Initiator to the nudger of the
// device, unless Config.NoNudge is set.
func (q *QueuePair) firstSent() {
	if q.initiator && !q.set.noNudge {
		q.mem.dev.nudger.add(q)
	}
}

var _ error = (*TerminateError)(nil)
