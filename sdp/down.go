package sdp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"viaduct/internal/frameio"
	"viaduct/iwarp"
)

// streamEnded tells the machine that the stream below has ended, once, and why.
func (c *Conn) streamEnded() {
	if c.drv.llp || c.suspended {
		return
	}
	c.drv.llp = true
	reset, err := true, error(nil)
	select {
	case <-c.qp.Ended():
		err = c.qp.Err()
		// Both directions closed in order, or we closed after the last message.
		reset = err != io.EOF && !(c.m.Finished() && errors.Is(err, iwarp.ErrClosed))
	default:
		reset = false // the peer's FIN
	}
	var te *iwarp.TerminateError
	switch {
	case errors.As(err, &te): // [D-49]
		err = fmt.Errorf("%w: %w", ErrReset, te)
	case !reset || errors.Is(err, iwarp.ErrClosed):
		err = nil
	default:
		err = fmt.Errorf("%w: %w", ErrReset, err)
	}
	c.exec(c.m.LLPClosed(c.now(), reset, err, c.acts[:0]))
	if c.m.Dead() {
		c.abortNow(err)
	}
}

// finish ends the stream in order, both directions being closed. [D-49]
// [SDP-8.2.1-23]
func (c *Conn) finish() { c.release(false, nil) }

// abortNow resets the stream, once what was posted has gone. [SDP-8.2.2-1]
func (c *Conn) abortNow(err error) {
	c.release(true, err)
}

// release lets go of the stream and of all that belongs to it, in the
// background, as it may take the peer two seconds. [SDP-8.2.1-14] [SDP-8.2.1-24]
func (c *Conn) release(reset bool, err error) {
	if c.released {
		return
	}
	c.released = true
	c.send.rang = false
	qp, cq := c.qp, c.cq
	qp.Flush()
	if c.opt.Logger.Enabled(context.Background(), slog.LevelInfo) {
		c.opt.Logger.Info("connection down", "conn", c.path.Remote, "err", err)
	}
	letGo := func() {
		if reset {
			// AbortConn, if there is one, goes into the socket before the reset.
			for i := 0; i < 20 && cq.Len() == 0; i++ {
				if _, ok := cq.Poll(); ok {
					break
				}
				time.Sleep(50 * time.Microsecond)
			}
			qp.Abort()
		}
		_ = qp.Close()
		c.mu.Lock()
		c.drained()
		c.mu.Unlock()
	}
	if c.drv.inOwn {
		c.drv.last = letGo
	} else {
		frameio.Go(c.drv.crewed, letGo)
	}
}

// drained is called when nothing completes any more.
func (c *Conn) drained() {
	for n := c.cq.PollN(c.comps[:]); n > 0; n = c.cq.PollN(c.comps[:]) {
	}
	if !c.m.Dead() && !c.m.Finished() {
		c.exec(c.m.LLPClosed(c.now(), true, nil, c.acts[:0]))
	}
	c.sendsDone(^uint64(0))
	for len(c.send.advs) > 0 {
		c.revoke(c.send.advs[0].key)
	}
	if c.drv.timer != nil {
		c.drv.timer.Stop()
	}
	for _, f := range c.onEnd {
		f()
	}
	c.flush()
	clear(c.acts[:cap(c.acts)])
	actions.Put(new(c.acts[:0]))
	c.acts = nil
	close(c.drv.done)
	close(c.gone)
	for _, o := range c.rops {
		o.signal()
	}
}
