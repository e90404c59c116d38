package iwarp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"viaduct/internal/fault"
	"viaduct/internal/frameio"
	"viaduct/internal/sock"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// Client starts a stream as Initiator on the connection nc, from the caller's position in both
// directions. The Reply follows the Request Client sends, so the caller cannot have read a part of
// the Reply. Either end of the TCP connection may be the Initiator. cfg may be nil. The stream owns
// nc from the call on, and closes nc after an error.
//
// Errors: *RejectedError; an error wrapping ErrNotMPA if the peer does not speak the protocol,
// ErrTimeout, or ErrTooLong if Config.Private is too long; *TerminateError if start-up ended with a
// Terminate; the error of the context; the error of Config.Prepare.
func Client(ctx context.Context, nc net.Conn, cfg *Config) (*QueuePair, error) { // [MPA-7.1-1] [MPA-7.1-3] [MPA-7.1-4] [MPA-7.1-7] [I-74]
	c := cfg.clone()
	q, _, err := client(ctx, nc, c)
	return q, err
}

func client(ctx context.Context, nc net.Conn, c *Config) (_ *QueuePair, in *mpa.Initiator, err error) {
	if nc, err = c.wrap(ctx, nc, false); err != nil {
		return nil, nil, err
	}
	rtr := c.rtr
	if rtr == 0 {
		rtr = mpa.RTRWrite | mpa.RTRRead // [I-06]
	}
	if err := c.complete(); err != nil {
		nc.Close()
		return nil, nil, err
	}
	in, err = mpa.NewInitiator(mpa.InitiatorConfig{
		Plain: c.Interop.Plain, Markers: c.Interop.Markers, CRC: !c.Device.cfg.NoCRC, // [MPA-4.4-3] [DDP-3-7]
		PeerToPeer: !c.Interop.ClientServer, RTR: rtr,
		IRD: c.ird(), ORD: c.ord(), MaxIRD: c.maxIRD(), ULPDepth: c.Interop.ULPDepth,
		Private: c.Private, MaxPrivate: c.Interop.MaxPrivate,
	})
	if err != nil {
		nc.Close()
		return nil, nil, startupError(ctx, err)
	}
	q, err := newQueuePair(c)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	q.link.conn = nc
	if err := q.prepare(); err != nil {
		nc.Close()
		return nil, nil, err
	}
	act, rest, err := exchange(ctx, nc, in, duration(c.Initiator.ReplyTimeout, defaultReplyTimeout))
	switch {
	case err != nil:
	case act == mpa.Leave:
		err = q.rejected(nc, in.Params(), rest)
		if c.Initiator.KeepConn {
			nc = nil
		}
	case act == mpa.Operate, act == mpa.Terminate:
		if err = q.start(nc, in.Params(), nil); err != nil && act == mpa.Operate {
			act, err = in.Fail(err), nil
		}
		if act == mpa.Terminate && err == nil {
			// The error is reported in the first FPDU. [MPA2-8-1] [MPA2-9.3-2] [I-38]
			q.begin(false, rest)
			q.terminateStartup(in.Err())
			<-q.life.gone.C()
			return nil, in, q.Err()
		}
	default:
		err = startupError(ctx, in.Err())
	}
	if err != nil {
		if nc != nil {
			nc.Close()
		}
		q.discard(err)
		return nil, in, err
	}
	q.begin(true, rest)
	return q, in, nil
}

// exchange sends the Request and waits for the Reply. rest holds any bytes after the Reply.
func exchange(ctx context.Context, nc net.Conn, in *mpa.Initiator, limit time.Duration) (_ mpa.Action, rest []byte, err error) {
	stop := bound(ctx, nc, limit)
	defer stop()
	if _, err := nc.Write(in.Start()); err != nil {
		in.Lost(err)
		return mpa.Close, nil, startupError(ctx, in.Err())
	}
	b := startupBuffers.Get().(*startupBuffer)
	defer startupBuffers.Put(b)
	buf := b[:0]
	for {
		if n, act := in.Receive(buf); act != mpa.Wait {
			return act, bytes.Clone(buf[n:]), nil
		}
		n, err := sock.ReadSoon(nc, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil && n == 0 {
			if isTimeout(err) && ctx.Err() == nil {
				in.Timeout()
			} else {
				in.Lost(err)
			}
			return mpa.Close, nil, startupError(ctx, in.Err())
		}
	}
}

// A startupBuffer holds the longest frame and some bytes after the frame.
type startupBuffer [mpa.FrameLen + mpa.MaxPrivate + 108]byte

var startupBuffers = sync.Pool{New: func() any { return new(startupBuffer) }}

// startupError returns the error of the context if the context has ended. Otherwise startupError
// returns err, wrapped to match the exported error.
func startupError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if me, ok := errors.AsType[*mpa.Error](err); ok && me.Code == mpa.CodeFrame {
		return startupFault{err, ErrNotMPA}
	}
	switch {
	case errors.Is(err, mpa.ErrTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case errors.Is(err, mpa.ErrPrivateTooLong):
		return startupFault{err, ErrTooLong}
	}
	return err
}

// A startupFault has the text of an error of package mpa, and also wraps an exported error.
type startupFault struct {
	error
	is error
}

func (f startupFault) Unwrap() []error { return []error{f.error, f.is} }

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// bound limits all reads and writes of start-up together, by time and by the context. The returned
// function removes the limit.
func bound(ctx context.Context, nc net.Conn, limit time.Duration) (stop func()) {
	if limit > 0 {
		nc.SetDeadline(time.Now().Add(limit)) // [MPA-7.1.2-25]
	}
	if ctx.Done() == nil {
		return func() { nc.SetDeadline(time.Time{}) }
	}
	done := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		nc.SetDeadline(time.Unix(1, 0))
		close(done)
	})
	return func() {
		if !cancel() {
			<-done
		}
		nc.SetDeadline(time.Time{})
	}
}

// wrap sets the socket options, and puts Config.WrapConn and Config.TLS between the stream and TCP.
// It closes nc after an error.
func (c *Config) wrap(ctx context.Context, nc net.Conn, server bool) (net.Conn, error) {
	// Nagle's algorithm is off, so that FPDUs begin segments when possible. The system chooses the
	// buffer sizes, because the system fits the sizes to the path. [MPA-5.1-3] [DDP-A-1]
	if err := sock.Tune(nc, c.tuning()); err != nil {
		nc.Close()
		return nil, err
	}
	if c.owns() {
		return sock.Own(nc), nil
	}
	if c.WrapConn != nil {
		nc = c.WrapConn(nc)
	}
	if c.TLS == nil {
		return nc, nil
	}
	tc, d := tls.Client(nc, c.TLS), duration(c.Initiator.ReplyTimeout, defaultReplyTimeout)
	if server {
		tc, d = tls.Server(nc, c.TLS), duration(c.Responder.RequestTimeout, defaultRequestTimeout)
	}
	if d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return tc, nil
}

func (c *Config) tuning() sock.Tuning {
	return sock.Tuning{Congestion: c.Congestion, KeepAlive: c.KeepAlive, SameHost: c.SameHost,
		SameHostDir: c.SameHostDir}
}

// owns reports whether only the stream uses the TCP connection: no WrapConn, TLS or KeepConn.
func (c *Config) owns() bool {
	return c.WrapConn == nil && c.TLS == nil && !c.portable && !c.Initiator.KeepConn
}

func (q *QueuePair) prepare() error {
	if q.link.cfg.Prepare == nil {
		return nil
	}
	if err := q.link.cfg.Prepare(q); err != nil {
		q.discard(err)
		return err
	}
	return nil
}

// discard ends a stream that was never started, and waits until everything is released.
func (q *QueuePair) discard(err error) {
	q.life.endWith(err, endAbort)
	<-q.life.gone.C()
}

// rejected returns the error of a rejection. With KeepConn the error contains the
// connection. [MPA-7.1.2-13] [I-15]
func (q *QueuePair) rejected(nc net.Conn, p mpa.Params, rest []byte) error {
	e := &RejectedError{Private: p.Private, IRD: int(p.PeerIRD), ORD: int(p.PeerORD)}
	if q.link.cfg.Initiator.KeepConn {
		e.Conn, e.Unread = nc, rest
	}
	return e
}

// start binds the stream to its connection, before any FPDU can be sent or received.
func (q *QueuePair) start(nc net.Conn, p mpa.Params, r *mpa.Responder) error {
	q.link.conn, q.link.params, q.link.initiator = nc, p, r == nil
	q.inbound.limit.Store(int32(p.IRD))
	q.reads.limit.Store(min(int32(p.ORD), int32(q.link.cfg.ord())))
	q.inbound.initFor(max(int(p.IRD), int(q.link.cfg.ird()), 1), q.ext.Atomic)
	t := &q.tx
	t.enc = mpa.Encoder{CRC: p.CRC, Markers: p.SendMarkers && !fault.On("mpa-markers")}
	t.rtr = p.Ready
	t.nudges = r == nil && !q.link.cfg.Interop.NoNudge
	if t.mss.fixed = q.link.cfg.Interop.FPDUSize != 0; t.mss.fixed {
		t.mss.mulpdu.Store(int32(q.link.cfg.Interop.FPDUSize))
	} else {
		t.refreshMSS()
	}
	q.rx.Wire, q.rx.responder = &q.rx, r
	if q.recvs.supply != nil {
		q.rx.unread = &unread{link: &q.link}
	}
	q.rx.dec = mpa.Decoder{CRC: p.CRC, Markers: p.RecvMarkers, Max: q.link.cfg.Interop.MaxFPDU}
	for i := range t.msn {
		first := ddp.MSN(max(q.link.cfg.firstMSN[i], uint32(ddp.FirstMSN)))
		t.msn[i], q.rx.queues[i] = first, ddp.NewQueue(first)
	}
	q.link.fc = frameio.New(nc, (*engine)(q), frameio.Options{Portable: q.link.cfg.portable}) // [MPA-7.1-6] [DDP-6.1-1]
	return nil
}

// begin opens the stream. rest holds the bytes received after the start-up frame. run is false if
// the stream only sends a Terminate.
func (q *QueuePair) begin(run bool, rest []byte) {
	cfg := q.link.cfg
	q.link.cfg = nil
	if run {
		q.life.move(lifeRun)
	} else {
		q.tx.rtr = 0
	}
	q.link.ready.Store(true)
	q.active.note()
	if q.link.initiator && (cfg.Interop.FirstFPDUDelay <= 0 || !run) || cfg.Interop.EarlyResponder {
		q.life.open.Store(true)
	}
	if !run || !cfg.Polled {
		q.link.fc.Start(rest)
	} else {
		q.link.fc.StartPolled(rest)
	}
	if !run {
		return
	}
	if q.life.log.Enabled(context.Background(), slog.LevelInfo) {
		q.life.log.Info("stream up", "local", q.LocalAddr().String(), "remote", q.RemoteAddr().String(), "rev", q.link.params.Rev,
			"crc", q.link.params.CRC, "ird", q.IRD(), "ord", q.ORD(), "mulpdu", q.mulpdu())
	}
	if q.link.initiator && cfg.Interop.FirstFPDUDelay > 0 {
		q.life.after(cfg.Interop.FirstFPDUDelay, func() {
			q.life.open.Store(true)
			q.sends.kick()
		})
	}
	if d := duration(cfg.Responder.FirstFPDUTimeout, defaultFirstFPDUTimeout); d > 0 && !q.link.initiator && q.link.params.PeerToPeer { // [I-14]
		q.life.limitFirst(d, &q.active.received)
	}
	if cfg.IdleTimeout > 0 {
		q.life.watchIdle(&q.active, cfg.IdleTimeout, cfg.IdleTimeout)
	}
	q.sends.kick()
	if cfg.Polled && !q.link.initiator {
		q.greet()
	}
}

// greet polls for up to 100 us for the peer's first FPDU, which opens our direction.
func (q *QueuePair) greet() {
	if !sock.Soon(func() bool { q.link.fc.Poll(); return q.life.open.Load() }) {
		q.link.fc.Unpoll()
	}
}

// terminateStartup reports to the peer why start-up failed after the Reply.
func (q *QueuePair) terminateStartup(err error) {
	code := mpa.CodeCatastrophic
	if e, ok := errors.AsType[*mpa.Error](err); ok {
		code = e.Code
	}
	q.life.fault(rdmap.TerminateMPA(uint8(code)), err)
}
