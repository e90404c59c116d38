package sdp

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// A peekedConn gives back bytes that were read ahead.
type peekedConn struct {
	net.Conn
	ahead []byte
}

// Read takes the bytes read ahead first.
func (p *peekedConn) Read(b []byte) (int, error) {
	if len(p.ahead) > 0 {
		n := copy(b, p.ahead)
		p.ahead = p.ahead[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// CloseWrite passes on to connections that have it.
func (p *peekedConn) CloseWrite() error {
	if cw, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return errors.ErrUnsupported
}

// peekable makes a connection one that can be sniffed everywhere.
func peekable(nc net.Conn) net.Conn { return &peekedConn{Conn: nc} }

// sniffWrapped reads ahead on a connection made by peekable.
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
