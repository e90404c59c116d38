package iwarp

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"viaduct/internal/sock"
	"viaduct/internal/wire/mpa"
)

// A Request is a start-up in progress: the peer has asked for a stream and waits for an answer.
// Call exactly one of Accept, Reject and RejectKeep. Answer soon, because some peers give up after
// 10 s.
type Request struct {
	q    *QueuePair
	nc   net.Conn
	r    *mpa.Responder
	late *time.Timer
	done func() // reports to the listener that the start-up is over
}

// slowAnswer is the time after which a missing answer of the ULP is logged. [I-14]
const slowAnswer = 8 * time.Second

// ReadRequest starts a stream as Responder on the connection nc, and returns the peer's Request.
// read holds the part of the Request the caller has read already, or nil. cfg may be nil. The
// stream owns nc from the call on, and closes nc after an error. Nothing is sent before the Request
// is complete and answered.
//
// Errors: an error wrapping ErrNotMPA if the Request is malformed, an error wrapping ErrTimeout,
// the error of the context, or the error of Config.Prepare.
func ReadRequest(ctx context.Context, nc net.Conn, read []byte, cfg *Config) (*Request, error) { // [MPA-7.1.2-3] [MPA-7.1-4] [I-74] [MPA-7.1.5-1]
	return readRequest(ctx, nc, cfg, read)
}

func readRequest(ctx context.Context, nc net.Conn, cfg *Config, read []byte) (_ *Request, err error) {
	c := cfg.clone()
	if nc, err = c.wrap(ctx, nc, true); err != nil {
		return nil, err
	}
	fail := func(err error) (*Request, error) {
		nc.Close() // [MPA-8-6]
		return nil, err
	}
	if err := c.complete(); err != nil {
		return fail(err)
	}
	r, err := mpa.NewResponder(mpa.ResponderConfig{
		PlainOnly: c.Interop.PlainOnly, Markers: c.Interop.Markers, CRC: !c.Device.cfg.NoCRC, // [MPA-4.4-3]
		RTR: c.rtr, ForceRTR: c.forceRTR,
		IRD: c.ird(), ORD: c.ord(), MaxIRD: c.maxIRD(), NoReads: c.maxIRD() == 0, MinORD: depth(c.Responder.MinORD, 0),
		MaxPrivate: c.Interop.MaxPrivate, SendEarly: c.Interop.EarlyResponder,
	})
	if err != nil {
		return fail(err)
	}
	if err := await(ctx, nc, r, duration(c.Responder.RequestTimeout, defaultRequestTimeout), read); err != nil {
		c.logger().Info("start-up failed", "remote", nc.RemoteAddr().String(), "err", err)
		return fail(err)
	}
	if err := sock.CheckShared(nc, c.SameHost); err != nil {
		return fail(err)
	}
	q, err := newQueuePair(c)
	if err != nil {
		return fail(err)
	}
	q.link.params = r.Params()
	q.link.conn = nc
	if err := q.prepare(); err != nil {
		return fail(err)
	}
	req := &Request{q: q, nc: nc, r: r, done: func() {}}
	req.late = time.AfterFunc(slowAnswer, func() {
		c.logger().Warn("start-up waits for the application", "remote", nc.RemoteAddr())
	})
	return req, nil
}

// await reads the Request. A read takes all arrived bytes, because bytes after the frame make the
// Request malformed.
func await(ctx context.Context, nc net.Conn, r *mpa.Responder, limit time.Duration, read []byte) error {
	stop := bound(ctx, nc, limit)
	defer stop()
	b := startupBuffers.Get().(*startupBuffer)
	defer startupBuffers.Put(b)
	buf := append(b[:0], read...)
	for {
		switch _, act := r.Receive(buf); act {
		case mpa.Ask:
			return nil
		case mpa.Wait:
		default:
			return startupError(ctx, r.Err())
		}
		n, err := sock.ReadSoon(nc, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n] // [I-11]
		if err != nil && n == 0 {
			if isTimeout(err) && ctx.Err() == nil {
				r.Timeout()
			} else {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				r.Lost(err)
			}
			return startupError(ctx, r.Err())
		}
	}
}

// Private returns the private data of the peer: input from the network.
func (r *Request) Private() []byte { return r.r.Params().Private } // [MPA-7.1.1-21]

// RemoteAddr returns the peer's address.
func (r *Request) RemoteAddr() net.Addr { return r.nc.RemoteAddr() }

// QueuePair returns the future stream, so that receives can be posted and memory registered before
// Accept. [QueuePair.Params] returns the values in the Request.
func (r *Request) QueuePair() *QueuePair { return r.q }

// Configure changes the configuration of the future stream after the Request is known, for example
// to choose a domain for the user named by the private data. Configure calls change with a copy of
// the Config. change may set the domain, the queues and the depths, the source of receives, and the
// timers. Values in start-up frames cannot be changed: IRD and ORD, markers, the kinds of RTR.
//
// Afterwards [Request.QueuePair] returns a new stream, already passed to Config.Prepare. Receives
// and registered memory of the old stream are gone. An error is the error of Config.Prepare, or
// wraps ErrLimit or ErrInvalid. After an error the Request is still open, with the old stream.
func (r *Request) Configure(change func(*Config)) error {
	c := r.q.link.cfg.clone()
	change(c)
	q, err := newQueuePair(c)
	if err != nil {
		return err
	}
	q.link.params, q.link.conn = r.q.link.params, r.q.link.conn
	if err := q.prepare(); err != nil {
		return err
	}
	old := r.q
	r.q = q
	old.discard(ErrClosed)
	return nil
}

// Accept answers with the private data and starts the stream, which belongs to the caller. Sends
// may be posted at once, but leave after the peer's first FPDU has arrived.
//
// If the error wraps ErrTooLong, because of the private data, the Request is still open. After any
// other error the connection is closed. If the peer serves fewer Reads than ResponderConfig.MinORD, Accept
// rejects the Request and returns an error.
func (r *Request) Accept(private []byte) (*QueuePair, error) { // [MPA-7.1.2-8] [MPA-7.1.2-9] [MPA-7.1.2-10] [MPA-7.1.2-15]
	reply, err := r.r.Accept(mpa.Decision{Private: private})
	if errors.Is(err, mpa.ErrPrivateTooLong) {
		return nil, startupFault{err, ErrTooLong}
	}
	r.settle()
	q := r.q
	if err != nil {
		r.writeFrame(reply)
		r.linger()
		q.discard(err)
		return nil, err
	}
	// The stream is complete before the Reply is sent, because the peer may send a message as soon
	// as it has the Reply. [MPA-7.1-6]
	if err = q.start(r.nc, r.r.Params(), r.r); err == nil {
		err = r.writeFrame(reply)
	}
	if err != nil {
		r.nc.Close()
		q.discard(err)
		return nil, err
	}
	q.begin(true, nil)
	return q, nil
}

// Reject answers with a rejection and the private data. It waits up to a second for the peer's
// close, and then closes the connection. If the error wraps ErrTooLong, the Request is still open.
func (r *Request) Reject(private []byte) error { // [MPA-7.1.2-5] [MPA-7.1.4.2-1] [I-15]
	err := r.reject(private)
	if !errors.Is(err, mpa.ErrPrivateTooLong) {
		r.linger()
		r.q.discard(ErrClosed)
	}
	return err
}

// RejectKeep answers with a rejection and gives the TCP connection to the caller. If the error
// wraps ErrTooLong, the Request is still open. After any other error the connection is closed.
func (r *Request) RejectKeep(private []byte) (net.Conn, error) { // [MPA-7.1.2-7]
	if err := r.reject(private); err != nil {
		if !errors.Is(err, mpa.ErrPrivateTooLong) {
			r.nc.Close()
			r.q.discard(ErrClosed)
		}
		return nil, err
	}
	r.q.discard(ErrClosed)
	return r.nc, nil
}

func (r *Request) reject(private []byte) error {
	frame, err := r.r.Reject(private)
	if errors.Is(err, mpa.ErrPrivateTooLong) {
		return startupFault{err, ErrTooLong}
	}
	if err != nil {
		return err
	}
	r.settle()
	return r.writeFrame(frame)
}

func (r *Request) settle() {
	r.late.Stop()
	r.done()
}

func (r *Request) writeFrame(frame []byte) error {
	r.nc.SetWriteDeadline(time.Now().Add(terminateTimeout))
	_, err := r.nc.Write(frame)
	r.nc.SetWriteDeadline(time.Time{})
	return err
}

// linger closes our direction and waits for the peer to close, so that the rejection arrives. Then
// linger closes the connection.
func (r *Request) linger() {
	if cw, ok := r.nc.(interface{ CloseWrite() error }); ok {
		cw.CloseWrite()
		r.nc.SetReadDeadline(time.Now().Add(rejectTimeout))
		io.Copy(io.Discard, r.nc)
	}
	r.nc.Close()
}

// Server starts a stream as Responder on nc and accepts every Request, with Config.Private as
// private data. Use [ReadRequest] to decide on the Request.
func Server(ctx context.Context, nc net.Conn, cfg *Config) (*QueuePair, error) {
	r, err := ReadRequest(ctx, nc, nil, cfg)
	if err != nil {
		return nil, err
	}
	q, err := r.Accept(cfg.clone().Private)
	if errors.Is(err, mpa.ErrPrivateTooLong) {
		r.Reject(nil)
	}
	return q, err
}
