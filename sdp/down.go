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
func (c *Conn) streamEnded() {
	if c.state != streamUp {
		return
	}
	c.state = streamOver
	err := error(nil) // stays nil after the peer's FIN
	select {
	case <-c.qp.Ended():
		err = c.qp.Err()
	default:
	}
	switch {
	case err == nil, err == io.EOF, errors.Is(err, iwarp.ErrClosed):
		err = nil
	default:
		c.cut = !c.m.Acknowledged()               // TCP will not deliver the unacknowledged bytes
		err = fmt.Errorf("%w: %w", ErrReset, err) // [D-49]
	}
	c.exec(c.m.LLPClosed(c.now(), err, c.room()))
	if c.m.Dead() {
		c.release(true, err)
	}
}

// release closes the stream and then releases the resources of the connection, in the background,
// because the peer may take two seconds. If closing is set and reset is not, release leaves both
// steps to Close. If reset is true, release resets the stream. err is the reason for the log, or
// nil. A second call has no effect. [SDP-8.2.1-14] [SDP-8.2.1-24]
func (c *Conn) release(reset bool, err error) {
	if c.state == streamReleased {
		return
	}
	c.state = streamReleased
	c.send.flush()
	qp := c.qp
	if c.opt.Logger.Enabled(context.Background(), slog.LevelInfo) {
		if err != nil {
			c.opt.Logger.Info("connection down", "remote", c.path.Remote.String(), "err", err)
		} else {
			c.opt.Logger.Info("connection closed", "remote", c.path.Remote.String())
		}
	}
	letGo := func() {
		if reset {
			qp.Abort()
		}
		_ = qp.Close()
		c.mu.Lock()
		c.drained()
		c.unlock()
	}
	if c.closing && !reset {
		c.letGo = letGo
		return
	}
	attend.Go(c.pooled, letGo)
}

// drained completes the end of the connection, after the stream has ended and no request will
// complete any more.
func (c *Conn) drained() {
	cq := c.queue.Load()
	for n := cq.PollN(c.comps[:]); n > 0; n = cq.PollN(c.comps[:]) {
		for i := range c.comps[:n] {
			switch e := &c.comps[i]; {
			case e.QP != c.qp || e.Status != iwarp.StatusOK:
			case e.Op != iwarp.OpRecv:
				c.sendsDone(e.ID) // the completed Sends may include the DisConn
			case c.m.Finished():
				// An AbortConn is effective even after the DisConn. [SDP-8.2.1-12]
				c.received(c.now(), e)
			}
		}
	}
	if !c.m.Dead() && !c.m.Finished() {
		c.exec(c.m.LLPClosed(c.now(), nil, c.room()))
	}
	c.send.last = 0 // a DisConn whose Send is not complete counts as not sent
	c.sendsDone(^uint64(0))
	c.advs.revokeAll()
	c.alarm.stop()
	c.flush()
	clear(c.acts[:cap(c.acts)])
	actions.Put(new(c.acts[:0]))
	c.acts = nil
	close(c.gone)
}
