//go:build linux && (amd64 || arm64)

package run

import (
	"cmp"
	"errors"
	"net"
	"sync"
	"syscall"

	"viaduct/sdp"
)

// relay carries bytes between the program's connection and the transport's: each
// direction, its urgent bytes as such, its end as a half-close, and a broken connection as
// a reset, of which --explain tells why. ended is called at its end.
func (s *supervisor) relay(nearConn, farConn net.Conn, ended func()) {
	near, err := streamOf(nearConn)
	far, ferr := streamOf(farConn)
	if err = cmp.Or(err, ferr); err != nil { // one of them has been closed
		abort(nearConn)
		abort(farConn)
		s.explainReset(farConn, err)
		ended()
		return
	}
	s.relays.Go(func() {
		defer ended()
		defer near.Close()
		defer far.Close()
		var wg sync.WaitGroup
		var once sync.Once
		oneWay := func(to, from stream, bytes *counter) {
			err := pump(to, from, bytes)
			if err == nil {
				err = closeWrite(to)
			}
			if err != nil {
				once.Do(func() { abort(near); abort(far); s.explainReset(far, err) })
			}
		}
		over := make(chan struct{})
		wg.Go(func() {
			oneWay(far, near, &s.stats.BytesOut)
			// Once no process is left, an end of the program's stream is the end of
			// its socket: what the peer might still send is not wanted.
			select {
			case <-s.alive.Done():
				near.Close()
				far.Close() // which lingers until the peer has everything
			case <-over:
			}
		})
		oneWay(near, far, &s.stats.BytesIn)
		close(over)
		wg.Wait()
	})
}

// explainReset tells of a relay that ended by an error other than that this process
// closed it.
func (s *supervisor) explainReset(far net.Conn, err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	path := "tcp, relayed"
	if _, ok := far.(*sdp.Conn); ok {
		path = "sdp"
	}
	s.explain.line(event{Call: "reset", Local: addrPort(far.LocalAddr()), Remote: addrPort(far.RemoteAddr()), Path: path, Why: err.Error()})
}

func closeWrite(c stream) error {
	// The other side may have ended both directions, which is no failure.
	if err := c.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
		return err
	}
	return nil
}
