package iwarp

import (
	"context"
	"net"

	"viaduct/internal/sock"
)

// Dial connects to addr, host:port, and starts a stream as Initiator. cfg may
// be nil. See [Client] for the errors.
func Dial(ctx context.Context, addr string, cfg *Config) (*QueuePair, error) {
	c := cfg.clone()
	q, silent, err := dial(ctx, addr, c)
	if silent && c.Interop.PlainFallback { // [MPA2-10-8] [I-02]
		c.Interop.Plain = true
		q, _, err = dial(ctx, addr, c)
	}
	return q, err
}

func dial(ctx context.Context, addr string, c *Config) (_ *QueuePair, silent bool, err error) {
	nc, err := dialTCP(ctx, addr, c)
	if err != nil {
		return nil, false, err
	}
	q, in, err := client(ctx, nc, c)
	if err == nil {
		return q, false, nil
	}
	if in != nil && in.MayRetryPlain() {
		return nil, true, &plainHint{err}
	}
	return nil, false, err
}

// dialTCP makes the TCP connection, over shared memory if the Config and the peer allow sharing. If
// only the stream will use the connection, the result is a type of package sock instead of a
// *net.TCPConn.
func dialTCP(ctx context.Context, addr string, c *Config) (net.Conn, error) {
	var d net.Dialer
	dial := d.DialContext
	if c.owns() {
		dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return sock.Dial(ctx, &d, network, addr)
		}
	}
	nc, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if err := sock.ShareMemory(ctx, nc, c.SameHost, c.SameHostDir); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// plainHint adds a hint to an error: an old peer may be the reason.
type plainHint struct{ err error }

func (e *plainHint) Error() string {
	return e.err.Error() + "; the peer closed without an answer: it may know revision 1 of MPA only, or speak TLS"
}

func (e *plainHint) Unwrap() error { return e.err }
