package vitcp

import (
	"sync/atomic"

	"viaduct/internal/machine"
	"viaduct/internal/wire/vitcpwire"
)

// A life is the life of a link: its state, the report of an error to the peer, and what happens
// when the connection breaks. Any goroutine may use a life. Only the first cause of an end counts.
type life struct {
	machine.Life[lifeState]
	link  *shared
	fault atomic.Pointer[fault] // the report to the peer, or nil
}

// A fault is the report to a peer at Reliable Reception. It names the message at fault.
// [VIT-3.1-ACK-6] [V-13]
type fault struct {
	number vitcpwire.Number
	code   uint8
}

// report returns the header of a segment with the report of the fault. Without a fault it returns h
// unchanged.
func (f *fault) report(h vitcpwire.Header) vitcpwire.Header {
	if f != nil {
		h.Ack, h.Error = f.number, vitcpwire.MakeRemoteError(f.code, 0)
	}
	return h
}

// move changes the state of the link.
func (l *life) move(e lifeEvent) (from, to lifeState) { return lifeTable.Move(&l.Life, e) }

// breaks logs cause, passes it to Config.Broken, and makes the engine break the connection. If the
// engine had already stopped the link in state from, the state before the fault, breaks only logs.
// Only the first cause calls breaks. after, if not nil, runs before the engine breaks the VI, when
// no role accesses the consumer's memory any more; after may call the endpoint.
func (l *life) breaks(from lifeState, cause error, orderly bool, after func()) {
	switch {
	case from.stopped():
		l.link.log.Debug("stream ended", "err", cause)
		return
	case orderly:
		l.link.log.Info("peer disconnected")
	default:
		l.link.log.Info("connection broken", "err", cause)
	}
	if broken := l.link.p.cfg.Broken; broken != nil {
		broken(l.link.ep.VI(), cause)
	}
	go func() {
		if after != nil {
			l.link.c.Quiesce()
			l.link.c.WithSender(func() {
				if !l.Load().stopped() {
					after()
				}
			})
		}
		l.link.ep.Break(orderly)
	}()
}

// die ends the connection from within a role. No further message is begun or accepted. At Reliable
// Reception report, if not nil, is reported to the peer. For after see breaks. The caller must not
// access the consumer's memory afterwards. On a connection with an earlier fault die does nothing.
func (l *life) die(cause error, report *fault, after func()) {
	if l.Load().faulted() {
		return
	}
	if l.link.level == reception { // [VIT-3.1-ERR-5]
		l.fault.Store(report)
	}
	from, to := l.move(lifeFault)
	if from == to {
		return
	}
	l.link.c.Kick() // fillLast ends this direction of the stream
	l.breaks(from, cause, false, after)
}

// violated ends the connection by a reset, because the peer broke the protocol as described by err.
// [V-41]
func (l *life) violated(err error) {
	from, to := l.move(lifeViolation)
	if from == to {
		return // an earlier error has already ended the connection
	}
	l.link.p.count.protocolErrors.Add(1)
	l.link.c.Abort()
	l.breaks(from, err, false, nil)
}
