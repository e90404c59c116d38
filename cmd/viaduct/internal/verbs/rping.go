package verbs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/rping"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/status"
	"viaduct/iwarp"
)

// An rpingPlan holds the values of the flags. The flags are the same as in rdma-core's rping.
type rpingPlan struct {
	server, client, persistent bool
	host                       string
	port                       uint16
	count, size                int
	verbose, validate          bool
	noCRC                      bool
	reach                      reach
}

// An rpingResult is the result of rping.
type rpingResult struct {
	Role     string  `json:"role"`
	Remote   string  `json:"remote"`
	Rounds   int     `json:"rounds"`
	Bytes    int     `json:"bytes_per_round,omitempty"`
	Seconds  float64 `json:"seconds"`
	Verified bool    `json:"verified"`
}

func rpingCommand(e *shell.Env) *cobra.Command {
	var p rpingPlan
	c := &cobra.Command{
		Use:   "rping -s | rping -c -a HOST [-p PORT] [-C COUNT] [-S SIZE] [-v] [-V]",
		Short: "rdma-core's rping over iwarp, as server or client",
		Long: `Perform the exchange of rdma-core's rping, as server or client. In each round, the
server reads the client's buffer by RDMA Read and writes it back by RDMA Write. A
server exits after its first client, unless -P is given.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case p.server == p.client:
				return shell.Usagef("exactly one of -s and -c is wanted")
			case p.client && p.host == "":
				return shell.Usagef("-c needs -a HOST")
			case p.count < 0:
				return shell.Usagef("-C %d is negative", p.count)
			case p.size < rping.MinSize || p.size > rping.MaxSize:
				return shell.Usagef("-S %d is not between %d and %d", p.size, rping.MinSize, rping.MaxSize)
			}
			if p.server {
				return rpingServer(cmd.Context(), e, p)
			}
			return rpingClient(cmd.Context(), e, p)
		},
	}
	f := c.Flags()
	f.BoolVarP(&p.server, "server", "s", false, "be the server")
	f.BoolVarP(&p.client, "client", "c", false, "be the client")
	f.BoolVarP(&p.persistent, "persistent", "P", false, "server: serve any number of clients")
	f.StringVarP(&p.host, "addr", "a", "", "connect to `HOST`, or listen on that address")
	f.Uint16VarP(&p.port, "port", "p", rping.Port, "TCP `PORT`")
	f.IntVarP(&p.count, "count", "C", 0, "client: make `COUNT` rounds; 0 means until interrupted")
	f.IntVarP(&p.size, "size", "S", rping.DefaultSize, "client: move `SIZE` bytes in each round")
	f.BoolVarP(&p.verbose, "verbose", "v", false, "print the data of each round")
	f.BoolVarP(&p.validate, "validate", "V", false, "client: verify the returned data")
	p.reach.add(c, true)
	f.BoolVar(&p.noCRC, "no-crc", false, "use no MPA CRC if the peer agrees")
	return c
}

// config returns the configuration of the streams. The addresses of rping have no parameters; flags
// set the values instead.
func (p *rpingPlan) config(e *shell.Env, dials bool) (*iwarp.Config, error) {
	u := &addr.URL{Scheme: "iwarp", Query: map[string][]string{"crc": {"on"}}}
	if p.noCRC {
		u.Query.Set("crc", "off")
	}
	c := transport.IWARPConfig(u, &transport.Options{Env: e})
	c.CloseTimeout = interruptGrace // all rounds were answered, or do not count
	if e.Capture != nil {
		c.WrapConn = func(nc net.Conn) net.Conn { return e.Wrap(nc, dials) }
	}
	if dials {
		c.Prepare = func(q *iwarp.QueuePair) error {
			e.Status.Server().WatchQueuePair(q, status.Hint{Role: "dial"})
			return nil
		}
	}
	return rping.Config(c), nil
}

// options makes rping print the rounds like rdma-core's program.
func (p *rpingPlan) options(e *shell.Env, label string) rping.Options {
	o := rping.Options{Size: p.size, Count: p.count, Verify: p.validate}
	if p.verbose && !e.JSON {
		o.OnRound = func(_ int, data []byte) {
			text, _, _ := bytes.Cut(data, []byte{0})
			e.Printf("%s: %s\n", label, text)
		}
	}
	return o
}

func rpingClient(ctx context.Context, e *shell.Env, p rpingPlan) error {
	cfg, err := p.config(e, true)
	if err != nil {
		return err
	}
	at := net.JoinHostPort(p.host, strconv.Itoa(int(p.port)))
	start := time.Now()
	n := 0
	var all error // the error of a connection that had done all rounds
	err = p.reach.retrier(ctx, e).do(func() error {
		o := p.options(e, "ping data")
		o.Count = max(0, p.count-n) // rounds of an earlier connection are not repeated
		k, err := transport.Await(ctx, p.reach.wait, func() (int, error) {
			if n == 0 {
				start = time.Now()
			}
			return rping.Dial(ctx, at, cfg, o)
		})
		if n += k; p.count > 0 && n >= p.count {
			all = err
			return nil
		}
		return err
	})
	err = cmp.Or(err, all)
	took := time.Since(start)
	if err != nil && (ctx.Err() == nil || p.count > 0 || n == 0) {
		return fmt.Errorf("rping with %s after %d rounds: %w", at, n, err)
	}
	return rpingReport(e, rpingResult{"client", at, n, p.size, took.Seconds(), p.validate})
}

func rpingReport(e *shell.Env, r rpingResult) error {
	if e.JSON {
		return e.PrintEvent(r)
	}
	verified := ""
	if r.Verified {
		verified = ", data verified"
	}
	e.Printf("rping %s: %d rounds with %s in %.3f s%s\n", r.Role, r.Rounds, r.Remote, r.Seconds, verified)
	return nil
}

func rpingServer(ctx context.Context, e *shell.Env, p rpingPlan) error {
	cfg, err := p.config(e, false)
	if err != nil {
		return err
	}
	l, err := iwarp.Listen(net.JoinHostPort(p.host, strconv.Itoa(int(p.port))), cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	u := &addr.URL{Scheme: "iwarp", Host: p.host}
	e.Listening(u.WithPort(l.Addr()))
	serve := func(r *iwarp.Request) error {
		e.Status.Server().WatchQueuePair(r.QueuePair(), status.Hint{Role: "accept"})
		defer e.Metrics.Connection("iwarp", "accept")()
		start := time.Now()
		n, err := rping.Serve(ctx, r, p.options(e, "server ping data"))
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("rping with %s after %d rounds: %w", r.RemoteAddr(), n, err)
		}
		return rpingReport(e, rpingResult{Role: "server", Remote: r.RemoteAddr().String(),
			Rounds: n, Seconds: time.Since(start).Seconds()})
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		r, err := l.AcceptRequest(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if !p.persistent {
			return serve(r)
		}
		wg.Go(func() {
			if err := serve(r); err != nil && !errors.Is(err, net.ErrClosed) {
				e.Metrics.Failed("iwarp", err)
				e.Log.Warn("client failed", "err", err)
			}
		})
	}
}
