package sdp

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// A peekedConn is a connection whose Read first returns the bytes read ahead.
type peekedConn struct {
	net.Conn
	ahead []byte
}

// Read returns bytes read ahead, or else reads from the connection.
func (p *peekedConn) Read(b []byte) (int, error) {
	if len(p.ahead) > 0 {
		n := copy(b, p.ahead)
		p.ahead = p.ahead[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// CloseWrite calls CloseWrite of the connection, or returns errors.ErrUnsupported if the connection
// has no CloseWrite.
func (p *peekedConn) CloseWrite() error {
	if cw, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return errors.ErrUnsupported
}

// peekable returns a connection whose bytes can be read ahead on every system.
func peekable(nc net.Conn) net.Conn { return &peekedConn{Conn: nc} }

// sniffWrapped reads ahead on a connection from peekable, until n bytes have arrived or enough
// returns true, and returns the bytes. For another connection the error is errors.ErrUnsupported,
// and at the end of the stream io.ErrUnexpectedEOF.
func sniffWrapped(ctx context.Context, nc net.Conn, n int, enough func([]byte) bool, late time.Time) ([]byte, error) {
	p, ok := nc.(*peekedConn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	stop := bound(ctx, nc, late)
	defer stop()
	for len(p.ahead) < n && !enough(p.ahead) {
		b := make([]byte, n-len(p.ahead))
		k, err := p.Conn.Read(b)
		p.ahead = append(p.ahead, b[:k]...)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
	}
	return p.ahead[:min(n, len(p.ahead))], nil
}
