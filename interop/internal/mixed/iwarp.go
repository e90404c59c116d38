package mixed

import (
	"context"
	"fmt"

	"viaduct/iwarp"
	"viaduct/samehost"
)

// An iwarpNode shares one device among the node's streams. The device counts the regions of all
// streams.
type iwarpNode struct {
	s      Settings
	device *iwarp.Device
}

func (n *iwarpNode) config() *iwarp.Config {
	return &iwarp.Config{Device: n.device, SendDepth: 512, RecvDepth: 512,
		Initiator: iwarp.InitiatorConfig{ReplyTimeout: n.s.Patience},
		Responder: iwarp.ResponderConfig{RequestTimeout: n.s.Patience, FirstFPDUTimeout: n.s.Patience, MaxPendingPerHost: 256},
		KeepAlive: n.s.KeepAlive, WrapConn: n.s.WrapConn, Logger: n.s.Logger}
}

// A qp implements verbs on a queue pair.
type qp struct {
	q   *iwarp.QueuePair
	mem []byte
	mr  *iwarp.MemoryRegion
}

func (v *qp) start(m *message, q *iwarp.QueuePair) (err error) {
	v.q, v.mem = q, m.mem
	if v.mr, err = q.Register(m.mem, iwarp.RemoteRead|iwarp.RemoteWrite); err != nil {
		return err
	}
	return m.prepare(v)
}

func (n *iwarpNode) Dial(ctx context.Context, address string, p Plan) (Conn, error) {
	m, v := newMessage(p, true), &qp{}
	cfg := n.config()
	cfg.Prepare = func(q *iwarp.QueuePair) error { return v.start(m, q) }
	if _, err := iwarp.Dial(ctx, address, cfg); err != nil {
		if v.mr != nil {
			v.mr.Close()
		}
		return nil, err
	}
	return m, nil
}

func (n *iwarpNode) Listen(ctx context.Context, hostPort string, p Plan, serve func(Conn)) (string, func(), error) {
	l, err := iwarp.Listen(hostPort, n.config())
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), accept(ctx, l, func() (Conn, error) {
		for {
			r, err := l.AcceptRequest(context.Background())
			if err != nil {
				return nil, err
			}
			m, v := newMessage(p, false), &qp{}
			if err := v.start(m, r.QueuePair()); err != nil {
				r.Reject(nil)
				continue
			}
			if _, err := r.Accept(nil); err != nil { // the peer has given up
				v.mr.Close()
				continue
			}
			return m, nil
		}
	}, serve), nil
}

func (n *iwarpNode) Regions() int { return n.device.Regions() }
func (n *iwarpNode) Close() error { return nil }

func (v *qp) region() place { return place{v.mr.TO(), v.mr.STag()} }

func (v *qp) post(id uint64, op iwarp.Op, off, n int, at place) error {
	return v.q.Post(iwarp.SendWR{ID: id, Op: op, SG: []iwarp.SGE{v.mr.SGE(off, n)}, Remote: iwarp.RemoteAddr{STag: at.handle, TO: at.address}})
}

func (v *qp) postSend(id uint64, off, n int) error { return v.post(id, iwarp.OpSend, off, n, place{}) }
func (v *qp) postWrite(id uint64, off, n int, to place) error {
	return v.post(id, iwarp.OpWrite, off, n, to)
}
func (v *qp) postRead(id uint64, off, n int, from place) error {
	return v.post(id, iwarp.OpRead, off, n, from)
}

func (v *qp) postRecv(id uint64, off, n int) error {
	return v.q.PostRecv(iwarp.RecvWR{ID: id, SG: []iwarp.SGE{v.mr.SGE(off, n)}})
}

func (v *qp) completion(c iwarp.Completion) completion {
	err := c.Err()
	if err != nil {
		if why := v.q.Err(); why != nil {
			err = fmt.Errorf("%w (%w)", why, err)
		}
	}
	return completion{c.ID, int(c.Len), err}
}

func (v *qp) waitSend(ctx context.Context) (completion, bool) {
	c, err := v.q.SendCQ().Wait(ctx)
	if err != nil {
		return completion{}, false
	}
	return v.completion(c), true
}

// waitRecv waits for the next completion of the receive queue. If the peer has ended its direction,
// waitRecv ends the stream, because missing messages will not arrive then.
func (v *qp) waitRecv(ctx context.Context) (completion, bool) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-v.q.PeerClosed():
			cancel()
		case <-both.Done():
		}
	}()
	c, err := v.q.RecvCQ().Wait(both)
	if err != nil && ctx.Err() == nil {
		v.q.Abort()
		c, err = v.q.RecvCQ().Wait(ctx)
	}
	if err != nil {
		return completion{}, false
	}
	return v.completion(c), true
}

func (v *qp) path() samehost.Path { return v.q.Path() }

func (v *qp) close() error { return v.q.Close() }
func (v *qp) abort()       { v.q.Abort() }

func (v *qp) free() error {
	v.q.Close()
	return v.mr.Close()
}
