package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
)

// proxyDialTimeout bounds how long a client waits for its other side.
const proxyDialTimeout = 30 * time.Second

func proxyCommand(e *shell.Env) *cobra.Command {
	var listen []string
	var to string
	var cf connFlags
	c := &cobra.Command{
		Use:   "proxy --listen URL --to URL",
		Short: "accept streams on one transport and carry them over another (tcp and sdp in any pairing)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(listen) == 0 || to == "" {
				return shell.Usagef("--listen URL and --to URL are needed")
			}
			var us []*addr.URL
			var ts []*transport.Transport
			for _, s := range append([]string{to}, listen...) {
				u, t, err := parse(s)
				if err != nil {
					return err
				}
				if err := noPath(u); err != nil {
					return err
				}
				if !t.IsStream() {
					return shell.Usagef("%s carries messages, not streams", u.Scheme)
				}
				us, ts = append(us, u), append(ts, t)
			}
			o, err := cf.options(e, true, us...)
			if err != nil {
				return err
			}
			return runProxy(cmd.Context(), e, us[0], ts[0], us[1:], ts[1:], o)
		},
	}
	c.Flags().StringArrayVar(&listen, "listen", nil, "`URL` to accept streams on; may be repeated")
	c.Flags().StringVar(&to, "to", "", "`URL` to carry them to")
	cf.add(c)
	return c
}

func runProxy(ctx context.Context, e *shell.Env, to *addr.URL, tt *transport.Transport, us []*addr.URL, ts []*transport.Transport, o *transport.Options) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	fail := make(chan error, len(us))
	serve := func(ctx context.Context, e *shell.Env, scheme string, c net.Conn) error {
		dctx, cancel := context.WithTimeout(ctx, proxyDialTimeout)
		far, err := tt.DialStream(dctx, to, o)
		cancel()
		if err != nil {
			abort(c) // the client learns it as it would from a dead service
			return fmt.Errorf("connect to %s: %w", to, err)
		}
		defer e.Metrics.Connection(to.Scheme, "dial")()
		stop := context.AfterFunc(ctx, func() { far.Close() })
		defer stop()
		return splice(e, scheme, c, to.Scheme, far)
	}
	for i, u := range us {
		at, err := acceptAll(ctx, e, &wg, u, ts[i], o, fail, serve, nil)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", u, err)
		}
		e.Listening(u.WithPort(at))
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-fail:
		return err
	}
}

// splice carries each direction to the other side, its end as a half-close,
// and a broken connection as a reset.
func splice(e *shell.Env, nearName string, near net.Conn, farName string, far net.Conn) error {
	defer near.Close()
	defer far.Close()
	var wg sync.WaitGroup
	var errs [2]error
	var once sync.Once
	oneWay := func(i int, to net.Conn, toName string, from net.Conn, fromName string) {
		n, err := io.Copy(to, from)
		e.Metrics.Bytes(fromName, "in").Add(float64(n))
		e.Metrics.Bytes(toName, "out").Add(float64(n))
		if err == nil {
			err = closeWrite(to)
		}
		if err != nil {
			errs[i] = err
			once.Do(func() { abort(near); abort(far) })
		}
	}
	wg.Go(func() { oneWay(0, far, farName, near, nearName) })
	wg.Go(func() { oneWay(1, near, nearName, far, farName) })
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

func closeWrite(c net.Conn) error {
	h, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("%T cannot be half-closed", c)
	}
	if err := h.CloseWrite(); err != nil && !isNotConnected(err) {
		return err
	}
	return nil
}

// abort ends a connection with a reset.
func abort(c net.Conn) {
	if h, ok := c.(interface{ SetLinger(int) error }); ok {
		h.SetLinger(0)
	}
	c.Close()
}
