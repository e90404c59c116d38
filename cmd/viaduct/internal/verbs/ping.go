package verbs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
)

// pingTimeout bounds the wait for an echo.
const pingTimeout = 10 * time.Second

// lastTrip bounds the wait for the outstanding echo after ping was interrupted.
const lastTrip = 250 * time.Millisecond

// A pingResult is the result of ping; times are in microseconds.
type pingResult struct {
	URL       string  `json:"url"`
	Transport string  `json:"transport"`
	Bytes     int     `json:"bytes"`
	Sent      int     `json:"sent"`
	Received  int     `json:"received"`
	Min       float64 `json:"min_us"`
	Median    float64 `json:"median_us"`
	P90       float64 `json:"p90_us"`
	P99       float64 `json:"p99_us"`
	Max       float64 `json:"max_us"`
	Error     string  `json:"error,omitempty"` // why there are fewer round trips than requested
}

func pingCommand(e *shell.Env) *cobra.Command {
	var count int
	var size string
	var interval time.Duration
	var quiet bool
	var cf connFlags
	c := &cobra.Command{
		Use:   "ping URL [-c COUNT] [-s BYTES] [-i INTERVAL]",
		Short: "measure round trips to an echo server",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, t, err := parse(args[0])
			if err != nil {
				return err
			}
			if err := noPath(u); err != nil {
				return err
			}
			n, err := addr.ParseSize(size)
			switch {
			case err != nil:
				return shell.Usage(fmt.Errorf("-s: %w", err))
			case count < 0 || interval < 0:
				return shell.Usagef("-c and -i must not be negative")
			case n > 1<<30:
				return shell.Usagef("-s %s is more than 1 GiB", size)
			case t.IsStream() && n == 0:
				return shell.Usagef("-s 0 needs a transport with messages")
			}
			o, err := cf.options(e, false, u)
			if err != nil {
				return err
			}
			return runPing(cmd.Context(), e, u, t, o, pingPlan{count, int(n), interval, quiet || e.JSON, &cf.reach})
		},
	}
	c.Flags().IntVarP(&count, "count", "c", 10, "make `COUNT` round trips; 0 means until interrupted")
	c.Flags().StringVarP(&size, "size", "s", "64", "send messages of `BYTES` each")
	c.Flags().DurationVarP(&interval, "interval", "i", 100*time.Millisecond,
		"`INTERVAL` between round trips; 0 means no pause")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the summary")
	cf.reach.add(c, true)
	cf.add(c)
	return c
}

// tripContext bounds a round trip. If ping is interrupted, the current round trip has a moment to
// finish: closing a connection with bytes in flight would show the peer a reset instead of an end.
func tripContext(ctx context.Context) (context.Context, context.CancelFunc) {
	tctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(lastTrip):
			cancel()
		case <-tctx.Done():
		}
	})
	return tctx, func() { stop(); cancel() }
}

type pingPlan struct {
	count    int
	size     int
	interval time.Duration
	quiet    bool
	reach    *reach
}

// A roundTrip sends b and returns the echoed bytes, in a buffer valid until the next call.
type roundTrip func(ctx context.Context, b []byte) ([]byte, error)

func runPing(ctx context.Context, e *shell.Env, u *addr.URL, t *transport.Transport, o *transport.Options, p pingPlan) error {
	var trip roundTrip
	hangUp := func() {}
	defer func() { hangUp() }()
	dial := func() error {
		var closeConn func()
		var err error
		if trip, closeConn, err = dialPing(ctx, u, t, o, p.size); err != nil {
			e.Metrics.Failed(u.Scheme, err)
			return err
		}
		ended := e.Metrics.Connection(u.Scheme, "dial")
		hangUp = func() { ending(ctx, closeConn); ended() }
		return nil
	}
	tries := p.reach.retrier(ctx, e)
	if err := tries.do(dial); err != nil {
		return err
	}
	r := pingResult{URL: u.String(), Transport: u.Scheme, Bytes: p.size}
	b := make([]byte, p.size)
	var times []time.Duration
	observed := e.Metrics.RoundTrips(u.Scheme)
	var failed, lost error
	next := time.Now()
	for p.count == 0 || r.Sent < p.count {
		if d := time.Until(next); d > 0 {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break
		}
		next = time.Now().Add(p.interval)
		stamp(b, uint64(r.Sent))
		r.Sent++
		tctx, cancel := tripContext(ctx)
		start := time.Now()
		got, err := trip(tctx, b)
		d := time.Since(start)
		cancel()
		if ctx.Err() != nil && err != nil {
			break
		}
		if err != nil {
			hangUp()
			hangUp = func() {}
			err = fmt.Errorf("round trip %d: %w", r.Sent, err)
			if tries.again(err, passing) && tries.do(dial) == nil { // bytes that did not return are lost
				lost = err
				continue
			}
			failed = err
			break
		}
		tries = p.reach.retrier(ctx, e)
		if !bytes.Equal(got, b) {
			failed = shell.Hint(fmt.Errorf("round trip %d: what came back is not what was sent", r.Sent),
				"check that the other side is viaduct echo")
			break
		}
		r.Received++
		observed.Observe(d.Seconds())
		if len(times) < 1<<24 {
			times = append(times, d)
		}
		if !p.quiet {
			e.Printf("%d bytes from %s: seq=%d time=%.1f us\n", p.size, u.HostPort(), r.Sent, micros(d))
		}
	}
	if r.Received == 0 {
		return cmp.Or(failed, context.Cause(ctx), lost)
	}
	// The times so far are valid even if the server then fails.
	r.fill(times)
	if failed == nil && r.Sent < p.count && errors.Is(context.Cause(ctx), errTimeout) {
		failed = errTimeout // an interrupted ping succeeds, but --timeout is an error
	}
	if e.JSON {
		if failed != nil {
			r.Error = failed.Error()
		}
		return cmp.Or(failed, e.PrintJSON(r))
	}
	e.Printf("%d sent, %d received; round trip min/median/p90/p99/max = %.1f/%.1f/%.1f/%.1f/%.1f us\n",
		r.Sent, r.Received, r.Min, r.Median, r.P90, r.P99, r.Max)
	return failed
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func (r *pingResult) fill(t []time.Duration) {
	slices.Sort(t)
	at := func(q float64) float64 { return micros(t[min(len(t)-1, int(q*float64(len(t))))]) }
	r.Min, r.Median, r.P90, r.P99, r.Max = at(0), at(0.5), at(0.9), at(0.99), micros(t[len(t)-1])
}

// stamp makes each message different from the previous message.
func stamp(b []byte, n uint64) {
	for i := range b {
		b[i] = byte(n) + byte(i)
	}
	if len(b) >= 8 {
		binary.BigEndian.PutUint64(b, n)
	}
}

func dialPing(ctx context.Context, u *addr.URL, t *transport.Transport, o *transport.Options, size int) (roundTrip, func(), error) {
	if t.IsStream() {
		c, err := t.Stream(ctx, u, o)
		if err != nil {
			return nil, nil, err
		}
		return streamTrip(c, size), func() { endStream(c) }, nil
	}
	c, err := t.Messages(ctx, u, o)
	if err != nil {
		return nil, nil, err
	}
	if size > c.MaxMessage() {
		c.Close()
		return nil, nil, shell.Usagef("-s %d is more than the %d bytes a message can have here", size, c.MaxMessage())
	}
	return func(ctx context.Context, b []byte) ([]byte, error) {
		if err := c.Send(ctx, msg.Message{Data: b}); err != nil {
			return nil, err
		}
		m, err := c.Recv(ctx)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return m.Data, err
	}, func() { c.Close() }, nil
}

// endStream closes c. An end of SDP has bytes of its own in both directions, so endStream waits for
// the end of the peer, for at most lastTrip: if the process exited before, the bytes would reset the
// connection at the peer.
func endStream(c net.Conn) {
	c.Close()
	if d, ok := c.(interface{ Done() <-chan struct{} }); ok {
		select {
		case <-d.Done():
		case <-time.After(lastTrip):
		}
	}
}

// streamTrip reads while writing, so that a message larger than all buffers on the way also
// returns.
func streamTrip(c net.Conn, size int) roundTrip {
	in := make([]byte, size)
	return func(ctx context.Context, b []byte) ([]byte, error) {
		stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		werr := make(chan error, 1)
		write := func() { _, err := c.Write(b); werr <- err }
		if size > 32<<10 {
			go write()
		} else {
			write() // all buffers hold that much, and a goroutine costs time
		}
		_, err := io.ReadFull(c, in)
		if err != nil {
			c.SetDeadline(time.Unix(1, 0)) // end the writer
		}
		if e := <-werr; e != nil {
			err = e
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return in, err
	}
}
