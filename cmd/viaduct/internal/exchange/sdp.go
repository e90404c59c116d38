package exchange

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"viaduct/sdp"
)

// sdpOptions returns options with small buffers, so that a few thousand bytes show everything, and
// without timers short enough to fire within an exchange.
func sdpOptions(p sdp.Policy) sdp.Options {
	return sdp.Options{SendPolicy: p, RecvPolicy: p, RecvBuffers: 8, RecvBufferSize: 1024,
		SendThreshold: 1024, RecvThreshold: 1024,
		SendBuffer: 1, KeepAlive: -1, Timers: sdp.Timers{LocalRead: Patience, Deadlock: Patience,
			Unanswered: Patience, Hysteresis: time.Nanosecond}}
}

func sdpEnds(l *line, p sdp.Policy) (a, b *sdp.Conn, ln *sdp.Listener, err error) {
	lc := sdp.ListenConfig{Options: sdpOptions(p)}
	if ln, err = lc.Listen(l.ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, nil, nil, err
	}
	d := sdp.Dialer{Options: sdpOptions(p)}
	d.WrapConn = l.join
	type accepted struct {
		c   *sdp.Conn
		err error
	}
	got := make(chan accepted, 1)
	go func() {
		c, err := ln.AcceptConn(l.ctx)
		got <- accepted{c, err}
	}()
	nc, err := d.DialContext(l.ctx, "tcp", ln.Addr().String())
	if err != nil {
		ln.Close()
		return nil, nil, nil, err
	}
	x := <-got
	if x.err != nil {
		ln.Close()
		nc.Close()
		return nil, nil, nil, x.err
	}
	a, b = nc.(*sdp.Conn), x.c
	t, _ := l.ctx.Deadline()
	a.SetDeadline(t)
	b.SetDeadline(t)
	l.step(2)
	return a, b, ln, nil
}

// talk runs the functions of the ends, waits for all functions and joins the errors.
func talk(ctx context.Context, f ...func() error) error {
	errs := make(chan error, len(f))
	for _, f := range f {
		go func() { errs <- f() }()
	}
	var all error
	for range f {
		select {
		case err := <-errs:
			all = errors.Join(all, err)
		case <-ctx.Done():
			return errors.Join(all, ctx.Err())
		}
	}
	return all
}

func sender(c net.Conn, n int) func() error {
	return func() error { _, err := c.Write(make([]byte, n)); return err }
}

func reader(c net.Conn, n int) func() error {
	return func() error { _, err := io.ReadFull(c, make([]byte, n)); return err }
}

// finish closes a, and closes b after b has read the end of the stream.
func finish(l *line, a, b *sdp.Conn) error {
	l.step(2)
	return talk(l.ctx, a.Close, func() error {
		if _, err := b.Read(make([]byte, 1)); err != io.EOF {
			return err
		}
		return b.Close()
	})
}

func sdpBcopy(l *line) error {
	a, b, ln, err := sdpEnds(l, sdp.PinBuffered)
	if err != nil {
		return err
	}
	defer ln.Close()
	if err := talk(l.ctx, sender(a, 7000), reader(b, 7000)); err != nil {
		return err
	}
	l.step(2)
	if err := talk(l.ctx, sender(b, 500), reader(a, 500)); err != nil {
		return err
	}
	return finish(l, a, b)
}

func sdpReadZcopy(l *line) error {
	a, b, ln, err := sdpEnds(l, sdp.PinCombined)
	if err != nil {
		return err
	}
	defer ln.Close()
	if err := talk(l.ctx, sender(a, 6000), reader(b, 6000)); err != nil {
		return err
	}
	return finish(l, a, b)
}

func sdpWriteZcopy(l *line) error {
	a, b, ln, err := sdpEnds(l, sdp.PinPipelined)
	if err != nil {
		return err
	}
	defer ln.Close()
	if err := talk(l.ctx, reader(b, 6000), func() error { l.step(3); return sender(a, 6000)() }); err != nil {
		return err
	}
	return finish(l, a, b)
}

func sdpTransaction(l *line) error {
	a, b, ln, err := sdpEnds(l, sdp.PinPipelined)
	if err != nil {
		return err
	}
	defer ln.Close()
	l.step(3)
	if err := talk(l.ctx, func() error {
		_, err := a.Exchange(make([]byte, 200), make([]byte, 5000))
		return err
	}, func() error {
		if err := reader(b, 200)(); err != nil {
			return err
		}
		l.step(1)
		return sender(b, 5000)()
	}); err != nil {
		return err
	}
	return finish(l, a, b)
}

func sdpModes(l *line) error {
	a, b, ln, err := sdpEnds(l, sdp.PinCombined)
	if err != nil {
		return err
	}
	defer ln.Close()
	for _, p := range []sdp.Policy{sdp.PinPipelined, sdp.PinCombined, sdp.PinBuffered, sdp.PinCombined} {
		a.SetPolicies(p, sdp.PinCombined)
		b.SetPolicies(sdp.PinCombined, p)
		if err := talk(l.ctx, reader(b, 3000), func() error { l.step(1); return sender(a, 3000)() }); err != nil {
			return err
		}
		l.step(2)
	}
	return finish(l, a, b)
}

// sdpSuspend moves the accepting end to another listener.
func sdpSuspend(l *line) error {
	a, b, ln, err := sdpEnds(l, sdp.PinCombined)
	if err != nil {
		return err
	}
	defer ln.Close()
	lc := sdp.ListenConfig{Options: sdpOptions(sdp.PinCombined)}
	next, err := lc.Listen(l.ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer next.Close()
	if err := talk(l.ctx, sender(a, 500), reader(b, 500)); err != nil {
		return err
	}
	l.step(2)
	exp, err := next.Expect(netip.MustParseAddrPort(b.LocalAddr().String()),
		netip.MustParseAddrPort(b.RemoteAddr().String()), false, nil)
	if err != nil {
		return err
	}
	st, err := b.Suspend(l.ctx, uint16(next.Addr().(*net.TCPAddr).Port))
	if err != nil {
		return err
	}
	c, err := exp.Resume(l.ctx, st)
	if err != nil {
		return err
	}
	t, _ := l.ctx.Deadline()
	c.SetDeadline(t)
	l.step(2)
	if err := talk(l.ctx, sender(a, 700), reader(c, 700)); err != nil {
		return err
	}
	return finish(l, a, c)
}
