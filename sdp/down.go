package sdp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"viaduct/internal/attend"
	"viaduct/iwarp"
)

// streamEnded reports the end of the stream below, with the reason, to the machine once.
func (d *driver) streamEnded() {
	if d.state != streamUp {
		return
	}
	d.state = streamOver
	err := error(nil) // stays nil after the peer's FIN
	select {
	case <-d.qp.Ended():
		err = d.qp.Err()
	default:
	}
	switch {
	case err == nil, err == io.EOF, errors.Is(err, iwarp.ErrClosed):
		err = nil
	default:
		d.cut = !d.m.Acknowledged()               // TCP will not deliver the unacknowledged bytes
		err = fmt.Errorf("%w: %w", ErrReset, err) // [D-49]
	}
	d.exec(d.m.LLPClosed(d.now(), err, d.room()))
	if d.m.Dead() {
		d.release(true, err)
	}
}

// release closes the stream and then releases the resources of the connection, in the background,
// because the peer may take two seconds. If closing is set and reset is not, release leaves both
// steps to Close. If reset is true, release resets the stream. err is the reason for the log, or
// nil. A second call has no effect. [SDP-8.2.1-14] [SDP-8.2.1-24]
func (d *driver) release(reset bool, err error) {
	if d.state == streamReleased {
		return
	}
	d.state = streamReleased
	d.send.flush()
	qp := d.qp
	if d.opt.Logger.Enabled(context.Background(), slog.LevelInfo) {
		if err != nil {
			d.opt.Logger.Info("connection down", "remote", d.path.Remote.String(), "err", err)
		} else {
			d.opt.Logger.Info("connection closed", "remote", d.path.Remote.String())
		}
	}
	letGo := func() {
		if reset {
			qp.Abort()
		}
		_ = qp.Close()
		d.mu.Lock()
		d.drained()
		d.unlock()
	}
	if d.closing && !reset {
		d.letGo = letGo
		return
	}
	attend.Go(d.pooled, letGo)
}

// drained completes the end of the connection, after the stream has ended and no request will
// complete any more.
func (d *driver) drained() {
	cq := d.cq
	for n := cq.PollN(d.comps[:]); n > 0; n = cq.PollN(d.comps[:]) {
		for i := range d.comps[:n] {
			switch e := &d.comps[i]; {
			case e.QP != d.qp || e.Status != iwarp.StatusOK:
			case e.Op != iwarp.OpRecv:
				d.sendsDone(e.ID) // the completed Sends may include the DisConn
			case d.m.Finished():
				// An AbortConn is effective even after the DisConn. [SDP-8.2.1-12]
				d.received(d.now(), e)
			}
		}
	}
	if !d.m.Dead() && !d.m.Finished() {
		d.exec(d.m.LLPClosed(d.now(), nil, d.room()))
	}
	d.send.last = 0 // a DisConn whose Send is not complete counts as not sent
	d.sendsDone(^uint64(0))
	d.advs.revokeAll()
	d.alarm.stop()
	d.flush()
	clear(d.acts[:cap(d.acts)])
	actions.Put(new(d.acts[:0]))
	d.acts = nil
	close(d.gone)
}
