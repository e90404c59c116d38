package iwarp

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"viaduct/internal/sock"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// errNoAnswer is the cause if a request of the peer arrives too late to be answered.
var errNoAnswer = errors.New("iwarp: request of the peer after our direction was closed")

// tearDown ends the connection and releases everything: it closes the peer's windows, flushes
// posted requests, and then ends the TCP stream.
func (q *QueuePair) tearDown(how ending) {
	if q.link.ready.Load() {
		if how == endTerminate {
			q.link.fc.Kick()
		}
		q.link.fc.Quiesce()
	}
	q.windows.closeAll()
	q.flushAll()
	q.callHandlers() // call handlers now, because the end of the TCP stream may wait for the peer
	if q.link.ready.Load() {
		// [RDMAP-6.2.1-3] [RDMAP-7-2] [RDMAP-7-3] [DDP-3-9] [DDP-3-11] [DDP-6.2-2]
		q.life.endWire(how)
	}
	q.life.wg.Wait()
	q.flushAll() // a local invalidation may have finished only now
	q.callHandlers()
	q.sends.cq.detach(q, q.set.sendDepth)
	q.recvs.cq.detach(q, q.recvs.rq.depth)
	q.mem.dev.remove(q)
	q.life.gone.happen()
}

// flushAll completes every posted request. The call that posts a later request flushes the request.
func (q *QueuePair) flushAll() {
	// The lock is held while the state changes. A concurrent PostRecv, on seeing the new state,
	// waits for the lock, so later receives are flushed after earlier ones.
	q.recvs.flushing.Lock()
	defer q.recvs.flushing.Unlock()
	q.life.move(lifeFlush)
	q.sends.flush() // [DDP-6.2.2-2] [RDMAP-5.4-7] [DDP-3-3]
	q.rx.box.flush()
	q.recvs.flushLocked() // [DDP-6.2.2-2] [RDMAP-6.2.1-2]
}

// Failed implements [frameio.Protocol]. The end of the stream between messages closes the peer's
// direction in order; any other err is a lost connection. [I-32] [MPA-8-1] [RDMAP-6.2-2]
func (e *engine) Failed(err error) {
	q := (*QueuePair)(e)
	if q.life.Load().ended() {
		q.life.txFailed.happen()
		return
	}
	if err == io.EOF {
		if q.rx.atRest() {
			q.peerClosed()
			return
		}
		err = io.ErrUnexpectedEOF
	}
	if err == io.ErrUnexpectedEOF { // our direction is still open
		q.life.fault(rdmap.TerminateMPA(uint8(mpa.CodeClosed)), err)
		return
	}
	q.life.txFailed.happen()
	q.life.lost(err)
}

// SendFailed implements [frameio.SendFailer]. It ends the stream after a failure of the sending
// direction, possibly after the peer has closed the other direction in order.
func (e *engine) SendFailed(err error) {
	q := (*QueuePair)(e)
	q.life.txFailed.happen()
	if !q.life.Load().ended() {
		q.life.lost(err)
	}
}

// peerClosed records the orderly close of the peer's direction. Our direction stays open until our
// own close, unless Config.EndWithPeer is set. [DDP-6.2.1-4] [DDP-6.2.1-5] [I-32]
func (q *QueuePair) peerClosed() {
	_, to := q.life.move(lifePeerClose)
	q.life.peerEnd.happen()
	if q.life.log.Enabled(context.Background(), slog.LevelDebug) {
		q.life.log.Debug("peer closed", "remote", q.RemoteAddr().String())
	}
	q.recvs.flush()
	switch {
	case to == lifeDone:
		q.life.endInOrder()
	case q.set.endWithPeer:
		q.life.endWith(io.EOF, endQuiet)
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
	if from, to := q.life.move(lifeClose); from == to {
		if to.ended() {
			return q.life.closedErr()
		}
		return nil
	}
	q.Flush()
	q.sends.maybeFinish()
	q.sends.cq.deliver() // publishes the completions of a concurrent Post whose request Flush has sent
	return nil
}

// Close ends the stream in order and waits for the end: Close closes our direction like
// [QueuePair.CloseWrite], then waits for the peer, who may continue to send before closing too.
// Close waits for at most Config.CloseTimeout, 5 s by default, and then flushes the remaining
// requests. A peer that does not close costs time, but no data. If our own direction did not end
// within CloseTimeout, the connection is reset. No request completes after Close has returned. A
// second Close waits for the first. The error is always nil.
func (q *QueuePair) Close() error { // [RDMAP-6.2-1] [I-33]
	q.life.closer.Store(true)
	q.CloseWrite()
	if !q.link.ready.Load() {
		q.life.endWith(ErrClosed, endAbort)
	}
	if how, err := q.life.awaitEnd(q.set.closeTimeout); q.life.mark(err, how, nil) {
		q.tearDown(how)
	}
	<-q.life.gone.C()
	return nil
}

// CloseSoon implements [ulp.Stream]. It returns true if both directions end within 100 us.
// Otherwise our direction is closing or has ended.
func (s *stream) CloseSoon() bool {
	q := (*QueuePair)(s)
	q.life.closer.Store(true)
	if q.closeWrite() != nil || !q.link.ready.Load() {
		return false
	}
	done := sock.Soon(func() bool {
		q.poll()
		return q.life.bothEnded() || q.life.ended.has()
	})
	if !done || !q.life.mark(io.EOF, endQuiet, nil) {
		q.unpoll()
		return false
	}
	q.tearDown(endQuiet)
	return true
}

// Abort resets the connection at once, without a Terminate. Posted requests are flushed. Abort does
// not wait for the flush; a later Close does.
func (q *QueuePair) Abort() {
	q.life.endWith(ErrClosed, endAbort)
}

// callHandlers calls the handlers of the completion queues. The caller has no role of frameio.
func (q *QueuePair) callHandlers() {
	q.sends.cq.deliver()
	if q.recvs.cq != q.sends.cq {
		q.recvs.cq.deliver()
	}
}
