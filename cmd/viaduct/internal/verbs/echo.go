package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/sock"
)

func echoCommand(e *shell.Env) *cobra.Command {
	var listen []string
	var cf connFlags
	var rf registerFlags
	c := &cobra.Command{
		Use:   "echo --listen URL",
		Short: "return every message (vitcp, iwarp, fcvi) or every byte (sdp, tcp)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(listen) == 0 {
				return shell.Usagef("--listen URL is needed")
			}
			us, ts, err := parseAll(listen)
			if err != nil {
				return err
			}
			if err := rf.check(us); err != nil {
				return err
			}
			o, err := cf.options(e, true, us...)
			if err != nil {
				return err
			}
			return runEcho(cmd.Context(), e, us, ts, o, &rf)
		},
	}
	c.Flags().StringArrayVar(&listen, "listen", nil, "`URL` to listen on; may be repeated")
	rf.add(c, &cf)
	cf.add(c)
	return c
}

func runEcho(ctx context.Context, e *shell.Env, us []*addr.URL, ts []*transport.Transport, o *transport.Options, rf *registerFlags) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer ending(ctx, wg.Wait)
	defer cancel()
	fail := make(chan error, len(us))
	var bound []*addr.URL
	for i, u := range us {
		at, err := acceptAll(ctx, e, &wg, u, ts[i], o, fail, echoStream, echoMessages)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", u, err)
		}
		bound = append(bound, u.WithPort(at))
	}
	withdraw, err := rf.start(ctx, e, bound)
	defer withdraw()
	if err != nil {
		return err
	}
	for _, u := range bound {
		e.Listening(u) // a reader of this line also finds the registered names
	}
	if err := e.Ready(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-fail:
		return err
	}
}

// acceptAll listens and serves every connection in a goroutine of wg until ctx ends. It logs an
// error of a connection and serves the others. An error of the listener is sent to fail.
func acceptAll(ctx context.Context, e *shell.Env, wg *sync.WaitGroup, u *addr.URL, t *transport.Transport, o *transport.Options, fail chan<- error,
	stream func(context.Context, *shell.Env, string, net.Conn) error, messages func(context.Context, *shell.Env, string, msg.Conn) error) (net.Addr, error) {
	serve := func(remote net.Addr, close func() error, run func(context.Context) error) {
		wg.Go(func() {
			defer e.Metrics.Connection(u.Scheme, "accept")()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			log := e.Log.With("transport", u.Scheme, "remote", remote.String())
			log.Info("connected")
			err := run(ctx)
			close()
			if err != nil && ctx.Err() == nil {
				e.Metrics.Failed(u.Scheme, err)
				log.Warn("connection failed", "err", err)
				return
			}
			log.Info("disconnected")
		})
	}
	broken := func(err error) {
		if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			fail <- err
		}
	}
	if t.IsStream() {
		l, err := t.ListenStream(u, o)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { l.Close() })
		wg.Go(func() {
			for {
				c, err := sock.AcceptNext(l.Accept, ctx.Done())
				if err != nil {
					broken(err)
					return
				}
				serve(c.RemoteAddr(), c.Close, func(ctx context.Context) error {
					stop := context.AfterFunc(ctx, func() { c.Close() })
					defer stop()
					return stream(ctx, e, u.Scheme, c)
				})
			}
		})
		return l.Addr(), nil
	}
	l, err := t.ListenMsg(u, o)
	if err != nil {
		return nil, err
	}
	at := l.Addr()
	wg.Go(func() {
		defer l.Close()
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				broken(err)
				return
			}
			serve(c.RemoteAddr(), c.Close, func(ctx context.Context) error { return messages(ctx, e, u.Scheme, c) })
		}
	})
	return at, nil
}

// echoStream returns every byte to the sender, and then ends the stream.
func echoStream(_ context.Context, e *shell.Env, scheme string, c net.Conn) error {
	n, err := io.Copy(c, c)
	e.Metrics.Bytes(scheme, "in").Add(float64(n))
	e.Metrics.Bytes(scheme, "out").Add(float64(n))
	if h, ok := c.(interface{ CloseWrite() error }); ok && err == nil {
		err = h.CloseWrite()
	}
	return err
}

// echoMessages returns every message to the sender, with the immediate data.
func echoMessages(ctx context.Context, e *shell.Env, scheme string, c msg.Conn) error {
	in, out := e.Metrics.Bytes(scheme, "in"), e.Metrics.Bytes(scheme, "out")
	for {
		m, err := c.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		in.Add(float64(len(m.Data)))
		switch err := c.Send(ctx, m); {
		case errors.Is(err, io.EOF):
			return nil // the peer closed without waiting for this message
		case err != nil:
			return err
		}
		out.Add(float64(len(m.Data)))
	}
}
