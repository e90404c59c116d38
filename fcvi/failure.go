package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// A failure is an error that ends a connection. The part of an endpoint that finds the error
// returns it, after completing the descriptor concerned, if there is one. conn.fail then ends the
// connection.
type failure struct {
	reason   iu.Reason
	msg      iu.MsgID // the message that failed; the report to the peer names it if named is set
	named    bool
	orderly  bool // a descriptor has completed with the error, so the other descriptors are flushed
	answered bool // an ERR response reports the error, and the peer disconnects
}

// violation counts a frame that breaks the rules of its IU. At the reliable levels it returns the
// failure of the connection. [FCVI-6.1-4]
func (s *shared) violation(msg iu.MsgID) *failure {
	s.p.stats.Malformed++
	if !s.reliable() {
		return nil
	}
	return &failure{reason: iu.Protocol, msg: msg, named: true}
}

// fail ends the connection because of an error that was found at this side, and reports the error
// to the peer. It has no effect if there is no failure, or no connection. [FCVI-8.4-16]
func (c *conn) fail(now fc.Time, f *failure) {
	if f == nil || c.state != stConnected {
		return
	}
	if !f.orderly {
		c.p.log("connection failed", "conn", c.handle, "reason", f.reason.String())
	}
	c.breakNow(now, f.orderly)
	c.setState(stError)
	if f.answered { // the originator disconnects; otherwise this side does after R_A_TOV [FCVI-5.2.2-9]
		c.rx.failed, c.rx.failedID = f.reason, f.msg
		c.timer.Set(now + c.p.np.RATOV())
		c.p.activate(c)
		return
	}
	c.sendDisconnect(now, f.reason, f.msg, f.named)
}
