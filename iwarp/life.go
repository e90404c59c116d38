package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/counter"
	"viaduct/internal/machine"
	"viaduct/internal/perturb"
	"viaduct/internal/wire/rdmap"
)

// A life is the life of a stream: its state, why and how it ends, and the timers and goroutines
// that end with it. Any goroutine may use a life. Only the first cause of an end counts.
type life struct {
	machine.Life[lifeState]
	link *link
	log  *slog.Logger
	down func(how ending) // ends the connection and releases everything; may wait

	open   atomic.Bool            // whether we may send FPDUs [MPA-7.1.2-15]
	closer atomic.Bool            // Close was called, and ends the stream instead of endInOrder
	term   atomic.Pointer[[]byte] // RDMAP header of the Terminate to send, or nil

	mu     perturb.Mutex
	err    error         // guarded by mu; why the stream ended
	timers []*time.Timer // guarded by mu; timers that have not fired
	limit  *time.Timer   // guarded by mu; the timer, also in timers, that waits for the first FPDU
	wg     sync.WaitGroup

	ended    event // the stream has ended, and err is set
	drained  event // our direction has ended in order
	peerEnd  event // the peer has ended its direction
	termSent event // TCP has the Terminate
	txFailed event // nothing can be sent any more
	gone     event // tearDown is complete
}

// An ending is the way a stream ends on the wire.
type ending uint8

const (
	endTerminate ending = iota // our Terminate, then FIN [RDMAP-6.2.1-4]
	endQuiet                   // FIN [I-37]
	endLate                    // the FIN was sent before; the peer's end is not awaited [I-33]
	endAbort                   // reset
)

// move changes the state of the stream.
func (l *life) move(e lifeEvent) (from, to lifeState) { return lifeTable.Move(&l.Life, e) }

// fault ends the stream because of an error found by this side. A Terminate reports the error to
// the peer, unless our direction is not open yet or has ended. Only the first fault counts.
// [RDMAP-6.2.1-1] [RDMAP-7-1] [RDMAP-7.1-1] [RDMAP-7.1-5] [DDP-6.2.2-1] [DDP-6.2.2-3] [DDP-6.2.2-4]
// [DDP-6.2-1] [DDP-7-1] [I-34] [I-41]
func (l *life) fault(t rdmap.Terminate, cause error) {
	body := t.Append(nil)
	err := terminateError(t, false, body, cause)
	if l.open.Load() && !l.Load().finished() { // [I-38]
		l.end(err, endTerminate, &body)
	} else {
		l.endWith(err, endQuiet)
	}
}

// endWith ends the stream with err and without a Terminate.
func (l *life) endWith(err error, how ending) { l.end(err, how, nil) }

// end ends the stream with err; only the first call has an effect. The methods of frameio.Protocol
// may call end although they must not block, because down runs in a separate goroutine.
func (l *life) end(err error, how ending, term *[]byte) {
	if l.mark(err, how, term) {
		l.link.spawn(func() { l.down(how) })
	}
}

// mark marks the stream as ended. It returns false if the stream had ended before. After true the
// caller calls down in a goroutine that may wait. term is the Terminate to send, or nil.
func (l *life) mark(err error, how ending, term *[]byte) bool {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		l.log.Debug("later cause ignored", "err", err)
		return false
	}
	l.err = err
	l.term.Store(term) // Set term before the state: after the state has changed, only term is sent.
	l.move(lifeEnd)
	for _, t := range l.timers {
		t.Stop()
	}
	l.timers, l.limit = nil, nil
	l.mu.Unlock()

	l.logEnd(err, how)
	l.ended.happen()
	return true
}

func (l *life) logEnd(err error, how ending) {
	if !l.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	switch remote := l.link.remote().String(); {
	case errors.Is(err, ErrClosed) || errors.Is(err, io.EOF):
		l.log.Info("stream closed", "remote", remote)
	case how == endTerminate:
		l.log.Warn("terminate sent", "remote", remote, "err", err)
	default:
		l.log.Warn("stream ended", "remote", remote, "err", err)
	}
}

// lost ends the stream after the loss of the connection because of cause.
func (l *life) lost(cause error) { l.endWith(lostError(cause), endAbort) }

// endWire ends the connection, at last.
func (l *life) endWire(how ending) {
	fc := l.link.fc
	switch how {
	case endTerminate:
		t := time.NewTimer(terminateTimeout)
		defer t.Stop()
		select {
		case <-l.termSent.C():
		case <-l.txFailed.C():
		case <-t.C:
			fc.Abort()
		}
		fallthrough
	case endQuiet:
		// Bytes still arriving are read and dropped: closing a socket with unread input would reset
		// the connection and destroy the Terminate on the way.
		fc.Shutdown()
		fc.CloseAfter(drainTimeout) // [I-36]
	case endLate:
		fc.Close()
	default:
		fc.Reset()
	}
}

// endInOrder ends a stream after the end of both directions. If a Close is waiting, Close ends the
// stream instead.
func (l *life) endInOrder() {
	if !l.closer.Load() {
		l.endWith(io.EOF, endQuiet)
	}
}

// finish ends our direction if a close is in progress. The caller has found that nothing is left to
// send.
func (l *life) finish() {
	from, to := l.move(lifeFinish)
	if from == to {
		return
	}
	l.link.fc.Shutdown()
	l.drained.happen()
	if to == lifeDone {
		l.endInOrder()
	}
}

// bothEnded reports whether both directions have ended in order.
func (l *life) bothEnded() bool { return l.drained.has() && l.peerEnd.has() }

// awaitEnd waits until both directions have ended, the stream has ended, or d has passed; d = 0
// never passes. It returns how Close must end the stream, and the error for [QueuePair.Err].
func (l *life) awaitEnd(d time.Duration) (ending, error) {
	if l.bothEnded() {
		return endQuiet, io.EOF
	}
	var late <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-l.drained.C():
	case <-l.ended.C():
		return endQuiet, ErrClosed
	case <-late:
		return l.endingLate()
	}
	select {
	case <-l.peerEnd.C():
		return endQuiet, io.EOF
	case <-l.ended.C():
		return endQuiet, ErrClosed
	case <-late:
		return l.endingLate()
	}
}

// endingLate returns the results of awaitEnd when the time is over. The events count first, because
// a process that was stopped for the whole time finds them and the end of the time together.
func (l *life) endingLate() (ending, error) {
	switch {
	case l.bothEnded():
		return endQuiet, io.EOF
	case l.drained.has():
		return endLate, ErrClosed
	}
	return endAbort, ErrClosed
}

// cause returns why the stream ended, or nil.
func (l *life) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// closedErr returns the error of a call after the end of the stream.
func (l *life) closedErr() error {
	if err := l.cause(); err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return ErrClosed
}

// after calls f in a new goroutine after d, unless the stream ends earlier. If the stream has ended
// already, after returns nil and never calls f.
func (l *life) after(d time.Duration, f func()) *time.Timer {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		l.mu.Lock()
		l.forgetLocked(t)
		l.mu.Unlock()
		f()
	})
	l.timers = append(l.timers, t)
	return t
}

// forgetLocked removes a fired or stopped timer, so that the timer takes no memory while the stream
// continues.
func (l *life) forgetLocked(t *time.Timer) {
	if i := slices.Index(l.timers, t); i >= 0 {
		if l.timers = slices.Delete(l.timers, i, i+1); len(l.timers) == 0 {
			l.timers = nil
		}
	}
}

// limitFirst ends the stream if the peer's first FPDU does not arrive within d. received counts the
// FPDUs. [I-14]
func (l *life) limitFirst(d time.Duration, received *counter.Counter) {
	t := l.after(d, func() {
		if received.Load() == 0 {
			l.endWith(ErrTimeout, endAbort)
		}
	})
	l.mu.Lock()
	l.limit = t
	l.mu.Unlock()
}

// firstCame stops the timer of limitFirst, because the first FPDU has arrived.
func (l *life) firstCame() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.limit; t != nil {
		l.limit = nil
		t.Stop()
		l.forgetLocked(t)
	}
}

// watchIdle ends the stream when nothing was sent or received for d. It first checks after rest,
// and then again at the earliest time at which d can have passed. [SEC-6.4.2-1] [I-71]
func (l *life) watchIdle(a *activity, d, rest time.Duration) {
	l.after(rest, func() {
		idle := time.Since(a.last())
		if idle >= d {
			l.endWith(ErrTimeout, endAbort)
			return
		}
		l.watchIdle(a, d, d-idle)
	})
}
