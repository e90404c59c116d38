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

// relay carries bytes between the program's connection and the transport's, until both directions
// have ended. It keeps urgent bytes urgent. It forwards the end of a direction as a half-close, and
// a broken connection as a reset, whose reason --explain prints. It calls ended at the end.
func (s *supervisor) relay(nearConn, farConn net.Conn, ended func()) {
	near, err := streamOf(nearConn)
	far, ferr := streamOf(farConn)
	if err = cmp.Or(err, ferr); err != nil { // one of the connections is closed
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
			// If no process of the program is left, the end of the program's stream means a closed
			// socket: nobody will read further bytes of the peer.
			select {
			case <-s.alive.Done():
				near.Close()
				far.Close() // Close waits until the peer has received everything
			case <-over:
			}
		})
		oneWay(near, far, &s.stats.BytesIn)
		close(over)
		wg.Wait()
	})
}

// explainReset explains the error that ended a relay, unless this process closed the connection.
func (s *supervisor) explainReset(far net.Conn, err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	path := "tcp, relayed"
	if _, ok := far.(*sdp.Conn); ok {
		path = "sdp"
	}
	s.explain.line(event{Call: "reset", Local: addrPort(far.LocalAddr()), Remote: addrPort(far.RemoteAddr()),
		Path: path, Why: err.Error()})
}

func closeWrite(c stream) error {
	// The peer may have closed both directions. A full close is no failure.
	if err := c.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
		return err
	}
	return nil
}
