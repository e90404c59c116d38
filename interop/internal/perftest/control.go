package perftest

import (
	"context"
	"errors"

	"viaduct/iwarp"
)

// maxControl is the length in bytes of the longest message of the control
// stream.
const maxControl = keysLen

// A control is our end of the control stream. As in the tools, at most one receive is posted.
type control struct {
	q      *iwarp.QueuePair
	client bool
	ended  bool // the peer has closed, and all its messages were handled
	in     [maxControl]byte
}

// prepare posts the first receive, before the stream starts.
func (c *control) prepare(q *iwarp.QueuePair) error {
	c.q = q
	return c.arm()
}

// arm posts the next receive. If the peer has closed, arm sets ended instead.
func (c *control) arm() error {
	err := c.q.PostRecv(iwarp.RecvWR{SG: []iwarp.SGE{iwarp.Buf(c.in[:])}})
	if c.ended = errors.Is(err, iwarp.ErrPeerClosed); c.ended {
		return nil
	}
	return err
}

// exchange sends own and returns the peer's message, of the same length. The client sends first.
func (c *control) exchange(ctx context.Context, own []byte) (theirs []byte, err error) {
	if c.client {
		if err := c.send(ctx, own); err != nil {
			return nil, err
		}
	}
	if theirs, err = c.receive(ctx); err != nil {
		return nil, err
	}
	if !c.client {
		err = c.send(ctx, own)
	}
	return theirs, err
}

func (c *control) send(ctx context.Context, b []byte) error {
	if err := c.q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(b)}, Inline: true}); err != nil {
		return why(c.q, err)
	}
	w, err := c.q.SendCQ().Wait(ctx)
	if err != nil {
		return err
	}
	return why(c.q, w.Err())
}

func (c *control) receive(ctx context.Context) ([]byte, error) {
	if c.ended {
		return nil, errEnded
	}
	w, err := c.q.RecvCQ().Wait(ctx)
	if err != nil {
		return nil, err
	}
	if w.Status != iwarp.StatusOK {
		return nil, why(c.q, w.Err())
	}
	b := append([]byte(nil), c.in[:w.Len]...)
	return b, why(c.q, c.arm())
}

// why returns the error of the stream q instead of err, the error of a request, if the stream has
// ended with an error.
func why(q *iwarp.QueuePair, err error) error {
	if err == nil {
		return nil
	}
	if _, terminated := errors.AsType[*iwarp.TerminateError](q.Err()); terminated {
		return q.Err()
	}
	select {
	case <-q.PeerClosed():
		return errEnded
	default:
		return err
	}
}
