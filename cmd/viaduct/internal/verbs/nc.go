package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
)

// ncChunk is the length of the longest message from nc.
const ncChunk = 64 << 10

func ncCommand(e *shell.Env) *cobra.Command {
	var listen, peer bool
	var connectTimeout time.Duration
	var cf connFlags
	c := &cobra.Command{
		Use:   "nc URL | nc -l URL | nc --peer LOCALURL REMOTEURL",
		Short: "standard input and output over a connection",
		Long: `Connect standard input and output to a connection. Byte streams (tcp, sdp) are
half-closed at the end of the input. Over message transports (vitcp, iwarp,
fcvi), each chunk of the input is a message of at most 64 KiB, and an empty
message marks the end. The address of a listener is printed on standard error.

--retry repeats only the connection attempt, and never resends data.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case listen && peer:
				return shell.Usagef("-l and --peer exclude each other")
			case peer && len(args) != 2:
				return shell.Usagef("--peer wants LOCALURL and REMOTEURL")
			case !peer && len(args) != 1:
				return shell.Usagef("one URL is wanted, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			e.DataOnStdout = true
			var us []*addr.URL
			var t *transport.Transport
			for _, a := range args {
				u, tr, err := parse(a)
				if err != nil {
					return err
				}
				if err := noPath(u); err != nil {
					return err
				}
				if t != nil && t.Scheme != tr.Scheme {
					return shell.Usagef("%s and %s are two transports", t.Scheme, tr.Scheme)
				}
				us, t = append(us, u), tr
			}
			o, err := cf.options(e, listen || peer, us...)
			if err != nil {
				return err
			}
			if listen && cf.reach.retry > 0 {
				return shell.Usagef("--retry is for the side that connects")
			}
			if peer && t.PeerMsg == nil {
				return shell.Usagef("%s has no peer-to-peer connections", t.Scheme)
			}
			if connectTimeout > 0 && !listen {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, connectTimeout)
				defer cancel()
			}
			if t.IsStream() {
				c, err := retrying(cf.reach.retrier(ctx, e),
					func() (net.Conn, error) { return ncStream(ctx, e, t, us[0], o, listen) })
				if err != nil {
					return err
				}
				return pipeStream(cmd.Context(), e, us[0].Scheme, c)
			}
			var done func()
			c, err := retrying(cf.reach.retrier(ctx, e), func() (c msg.Conn, err error) {
				c, done, err = ncMessages(ctx, e, t, us, o, listen, peer)
				return c, err
			})
			if err != nil {
				return err
			}
			defer ending(cmd.Context(), done)
			return pipeMessages(cmd.Context(), e, us[0].Scheme, c)
		},
	}
	c.Flags().BoolVarP(&listen, "listen", "l", false, "listen on URL and accept one connection")
	c.Flags().BoolVar(&peer, "peer", false, "connect in the peer-to-peer model (vitcp, fcvi)")
	c.Flags().DurationVar(&connectTimeout, "connect-timeout", 0,
		"give up connecting after `TIME` in all; 0 means the transport's own limit")
	cf.reach.add(c, true)
	cf.add(c)
	return c
}

// ncStream dials a byte stream, or accepts a single connection if listen is set.
func ncStream(ctx context.Context, e *shell.Env, t *transport.Transport, u *addr.URL, o *transport.Options, listen bool) (net.Conn, error) {
	if !listen {
		return t.Stream(ctx, u, o)
	}
	l, err := t.ListenStream(u, o)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", u, err)
	}
	defer l.Close()
	defer e.Listening(u.WithPort(l.Addr()))()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	c, err := l.Accept()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return c, err
}

// ncMessages dials a message transport, meets the peer if peer is set, or accepts a single
// connection if listen is set. The returned function closes the connection and the listener.
func ncMessages(ctx context.Context, e *shell.Env, t *transport.Transport, us []*addr.URL, o *transport.Options, listen, peer bool) (msg.Conn, func(), error) {
	switch {
	case peer:
		c, err := t.PeerMsg(ctx, us[0], us[1], o)
		if err != nil {
			return nil, nil, err
		}
		return c, func() { c.Close() }, nil
	case !listen:
		c, err := t.Messages(ctx, us[0], o)
		if err != nil {
			return nil, nil, err
		}
		return c, func() { c.Close() }, nil
	}
	l, err := t.ListenMsg(us[0], o)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", us[0], err)
	}
	over := e.Listening(us[0].WithPort(l.Addr()))
	c, err := l.Accept(ctx)
	over()
	if err != nil {
		l.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, err
	}
	return c, func() { c.Close(); l.Close() }, nil
}

// pipeStream copies standard input to c and c to standard output until both have ended. It closes
// c.
func pipeStream(ctx context.Context, e *shell.Env, scheme string, c net.Conn) error {
	defer ending(ctx, func() { c.Close() })
	defer e.Metrics.Connection(scheme, "nc")()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	sent, received := make(chan error, 1), make(chan error, 1)
	go func() {
		n, err := io.Copy(c, e.Stdin)
		e.Metrics.Bytes(scheme, "out").Add(float64(n))
		if h, ok := c.(interface{ CloseWrite() error }); ok && err == nil {
			err = h.CloseWrite()
		}
		sent <- err
	}()
	go func() {
		n, err := io.Copy(e.Stdout, c)
		e.Metrics.Bytes(scheme, "in").Add(float64(n))
		received <- err
	}()
	if err := both(ctx, sent, received); err != nil {
		return err
	}
	err := c.Close() // the written bytes may still be lost
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// both waits until both directions have ended. It returns the first error without waiting for the
// other direction, because nobody may be there to end standard input.
func both(ctx context.Context, sent, received <-chan error) error {
	for range 2 {
		var err error
		select {
		case err = <-sent:
			sent = nil
		case err = <-received:
			received = nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
	}
	return nil
}

// pipeMessages sends standard input in messages and writes received messages to standard output,
// until each side has sent an empty message, which means the end. The caller closes c.
func pipeMessages(ctx context.Context, e *shell.Env, scheme string, c msg.Conn) error {
	defer e.Metrics.Connection(scheme, "nc")()
	sent, received := make(chan error, 1), make(chan error, 1)
	go func() { sent <- sendInput(ctx, e, scheme, c) }()
	go func() { received <- receiveOutput(ctx, e, scheme, c) }()
	if err := both(ctx, sent, received); err != nil {
		return err
	}
	return c.Shutdown(ctx)
}

func sendInput(ctx context.Context, e *shell.Env, scheme string, c msg.Conn) error {
	b := make([]byte, min(ncChunk, c.MaxMessage()))
	out := e.Metrics.Bytes(scheme, "out")
	for {
		n, err := e.Stdin.Read(b)
		if n > 0 {
			if err := c.Send(ctx, msg.Message{Data: b[:n]}); err != nil {
				return err
			}
			out.Add(float64(n))
		}
		if errors.Is(err, io.EOF) {
			return c.Send(ctx, msg.Message{})
		}
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
	}
}

func receiveOutput(ctx context.Context, e *shell.Env, scheme string, c msg.Conn) error {
	in := e.Metrics.Bytes(scheme, "in")
	for {
		m, err := c.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return shell.Hint(errors.New("the connection ended before the end of the other side's input"),
				"look at the other side")
		}
		if err != nil {
			return err
		}
		if len(m.Data) == 0 {
			return nil
		}
		in.Add(float64(len(m.Data)))
		if _, err := e.Stdout.Write(m.Data); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
}
