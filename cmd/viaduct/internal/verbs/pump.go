package verbs

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// pumpBytes is the buffer size of a direction.
const pumpBytes = 128 << 10

// A pump copies a single direction of a pair of connections, and can be stopped between any two
// bytes. After the stop, left holds the bytes read and not yet written.
type pump struct {
	to, from net.Conn
	left     []byte
	eof      bool // from has ended its stream
	ended    bool // the stream has ended and the end was forwarded
	n        int64
}

// run copies until the direction has ended or fails. If paused is set, run returns nil as soon as
// no read or write blocks. Whoever sets paused also sets past deadlines to end a blocked call.
func (p *pump) run(paused *atomic.Bool) error {
	buf := make([]byte, pumpBytes)
	for {
		for len(p.left) > 0 {
			n, err := p.to.Write(p.left)
			p.left = p.left[n:]
			p.n += int64(n)
			if err != nil {
				if paused.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
					p.left = append([]byte(nil), p.left...)
					return nil
				}
				return err
			}
		}
		if p.eof && !p.ended {
			p.ended = true
			return closeWrite(p.to)
		}
		if p.ended || paused.Load() {
			return nil
		}
		n, err := p.from.Read(buf)
		p.left = buf[:n]
		switch {
		case err == nil:
		case err == io.EOF:
			p.eof = true
		case paused.Load() && errors.Is(err, os.ErrDeadlineExceeded):
		default:
			return err
		}
	}
}

// A duplex is a pair of connections with bytes copied in both directions.
type duplex struct {
	near, far         net.Conn
	nearName, farName string
	out, back         pump // near to far, and the other way
	paused            atomic.Bool
	done              chan struct{} // closed when both pumps have stopped
	errs              [2]error
}

func newDuplex(nearName string, near net.Conn, farName string, far net.Conn) *duplex {
	return &duplex{near: near, far: far, nearName: nearName, farName: farName,
		out: pump{to: far, from: near}, back: pump{to: near, from: far}, done: make(chan struct{})}
}

// run copies both directions until both have ended, a direction fails, or pause is called. The
// failure of a direction resets both connections. run returns the errors of both.
func (d *duplex) run() error {
	defer close(d.done)
	one := make(chan struct{})
	go func() {
		defer close(one)
		d.errs[0] = d.out.run(&d.paused)
		d.failed(d.errs[0])
	}()
	d.errs[1] = d.back.run(&d.paused)
	d.failed(d.errs[1])
	<-one
	return errors.Join(d.errs[0], d.errs[1])
}

func (d *duplex) failed(err error) {
	if err != nil {
		abort(d.near)
		abort(d.far)
	}
}

// pause stops both directions and waits until both have stopped. live is false if both streams have
// ended, or if a connection has failed.
func (d *duplex) pause() (live bool) {
	d.paused.Store(true)
	past := time.Unix(1, 0)
	d.near.SetDeadline(past)
	d.far.SetDeadline(past)
	<-d.done
	return d.errs[0] == nil && d.errs[1] == nil && !(d.out.ended && d.back.ended)
}
