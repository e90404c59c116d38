package exchange

import (
	"context"
	"errors"

	"viaduct/iwarp"
)

func iwarpRDMA(l *line) error {
	ctx := l.ctx
	ln, err := iwarp.Listen("127.0.0.1:0", &iwarp.Config{Prepare: func(q *iwarp.QueuePair) error {
		return q.PostRecv(iwarp.RecvWR{SG: []iwarp.SGE{iwarp.Buf(make([]byte, 1000))}})
	}})
	if err != nil {
		return err
	}
	defer ln.Close()
	type accepted struct {
		q   *iwarp.QueuePair
		err error
	}
	got := make(chan accepted, 1)
	go func() {
		q, err := ln.Accept(ctx)
		got <- accepted{q, err}
	}()
	a, err := iwarp.Dial(ctx, ln.Addr().String(), &iwarp.Config{WrapConn: l.join, Interop: iwarp.Interop{NoNudge: true}})
	if err != nil {
		return err
	}
	defer a.Abort()
	x := <-got
	if x.err != nil {
		return x.err
	}
	b := x.q
	defer b.Abort()
	mem := make([]byte, memory)
	r, err := b.Register(mem, iwarp.RemoteRead|iwarp.RemoteWrite)
	if err != nil {
		return err
	}
	local := make([]byte, memory)
	sink, err := a.Register(local, 0)
	if err != nil {
		return err
	}
	for _, wr := range []iwarp.SendWR{
		{Op: iwarp.OpSend, SG: []iwarp.SGE{iwarp.Buf(local[:100])}},
		{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf(local[:3000])}, Remote: r.Remote(0)},
		{Op: iwarp.OpRead, SG: []iwarp.SGE{sink.SGE(4000, 2000)}, Remote: r.Remote(4000)},
	} {
		l.step(1)
		if err := post(ctx, a, wr); err != nil {
			return err
		}
	}
	l.step(2)
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	select {
	case <-b.PeerClosed():
	case <-b.Ended():
	case <-ctx.Done():
	}
	return errors.Join(b.Close(), <-closed)
}

func post(ctx context.Context, q *iwarp.QueuePair, wr iwarp.SendWR) error {
	if err := q.Post(wr); err != nil {
		return err
	}
	c, err := q.SendCQ().Wait(ctx)
	if err != nil {
		return err
	}
	return c.Err()
}
