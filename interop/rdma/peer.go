//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"viaduct/interop/internal/perftest"
	"viaduct/iwarp"
)

// peer runs the Go end of a trial, without viaduct run. role is serve or call.
func peer(what, role, port string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	at := net.JoinHostPort("127.0.0.1", port)
	for _, t := range []perftest.Test{perftest.WriteBW, perftest.ReadBW, perftest.SendBW} {
		if what == t.String() {
			return perftestPeer(ctx, t, role, at)
		}
	}
	talk := map[string]func(context.Context, *iwarp.QueuePair, bool) error{"rdma": rdmaPeer, "ucmatose": cmatosePeer}[what]
	if talk == nil {
		return fmt.Errorf("no peer for %s", what)
	}
	// Post receives before the stream starts, because the peer may send at once.
	cfg := &iwarp.Config{RecvDepth: messages, Prepare: func(q *iwarp.QueuePair) error {
		for range messages {
			if err := q.PostRecv(iwarp.RecvWR{SG: []iwarp.SGE{iwarp.Buf(make([]byte, 100))}}); err != nil {
				return err
			}
		}
		return nil
	}}
	var q *iwarp.QueuePair
	var err error
	if role == "call" {
		q, err = iwarp.Dial(ctx, at, cfg)
	} else {
		var l *iwarp.Listener
		if l, err = iwarp.Listen(at, cfg); err != nil {
			return err
		}
		defer l.Close()
		q, err = l.Accept(ctx)
	}
	if err != nil {
		return err
	}
	defer q.Close()
	return talk(ctx, q, role == "serve")
}

func perftestPeer(ctx context.Context, t perftest.Test, role, at string) error {
	opt := perftest.Options{Test: t, Count: 300, Verify: true}
	if role == "call" {
		_, err := perftest.Dial(ctx, at, nil, opt)
		return err
	}
	l, err := iwarp.Listen(at, perftest.Config(nil, opt))
	if err != nil {
		return err
	}
	defer l.Close()
	r, err := perftest.Serve(ctx, l, opt)
	if err == nil && t != perftest.ReadBW && r.Verified != opt.Count {
		err = fmt.Errorf("contents of %d messages verified, want %d", r.Verified, opt.Count)
	}
	return err
}

// messages is the number of ucmatose's messages each way.
const messages = 10

// send sends count messages of n bytes, one after the other.
func send(ctx context.Context, q *iwarp.QueuePair, count, n int) error {
	for range count {
		if err := q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(make([]byte, n))}}); err != nil {
			return err
		}
		if c, err := q.SendCQ().Wait(ctx); err != nil || c.Status != iwarp.StatusOK {
			return errors.Join(err, fmt.Errorf("a message was not sent: %v", c.Status), q.Err())
		}
	}
	return nil
}

// receive waits for count messages of n bytes. A message of another length is an error.
func receive(ctx context.Context, q *iwarp.QueuePair, count, n int) error {
	for i := range count {
		c, err := q.RecvCQ().Wait(ctx)
		if err != nil || c.Status != iwarp.StatusOK || int(c.Len) != n {
			return errors.Join(err, fmt.Errorf("message %d: %v, %d bytes", i, c.Status, c.Len), q.Err())
		}
	}
	return nil
}

// rdmaPeer does the exchange of rdma_client or rdma_server: 16 bytes from the client, 16 bytes
// back.
func rdmaPeer(ctx context.Context, q *iwarp.QueuePair, serves bool) error {
	if serves {
		if err := receive(ctx, q, 1, 16); err != nil {
			return err
		}
		return send(ctx, q, 1, 16)
	}
	if err := send(ctx, q, 1, 16); err != nil {
		return err
	}
	return receive(ctx, q, 1, 16)
}

// cmatosePeer does the exchange of ucmatose: the server sends first, and ends the connection.
func cmatosePeer(ctx context.Context, q *iwarp.QueuePair, serves bool) error {
	if serves {
		if err := send(ctx, q, messages, 100); err != nil {
			return err
		}
		return receive(ctx, q, messages, 100)
	}
	if err := receive(ctx, q, messages, 100); err != nil {
		return err
	}
	if err := send(ctx, q, messages, 100); err != nil {
		return err
	}
	select {
	case <-q.PeerClosed():
	case <-q.Ended():
	case <-ctx.Done():
		return errors.New("the server does not close")
	}
	return nil
}
