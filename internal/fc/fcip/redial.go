package fcip

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// The pause before an attempt doubles from the first to the last: RFC 3821, 8.1.2.1 asks for a
	// limit to repeated attempts. The last is short enough for a restarted fabric to have its
	// members back within five seconds.
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second

	// connectTime bounds the TCP connection of an attempt: a host that drops
	// packets while it starts must not hold the next attempt up for minutes.
	connectTime = 2 * time.Second

	// A link that ended sooner than this did not work, and the pauses continue to grow.
	settleTime = 5 * time.Second
)

// A Redialer makes a link again each time it is lost. One goroutine at a time may call its methods.
type Redialer struct {
	Address string // host and port
	Config  Config

	pause time.Duration
	since time.Time // of the last link
}

// Dial dials after a pause until there is a link. The error is that of ctx.
func (r *Redialer) Dial(ctx context.Context) (*Link, error) {
	if time.Since(r.since) > settleTime {
		r.pause = firstPause
	}
	for {
		// A quarter to either side keeps members that were lost together apart.
		t := time.NewTimer(r.pause*3/4 + rand.N(r.pause/2))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		}
		r.pause = min(2*r.pause, lastPause)
		l, err := dial(ctx, r.Address, r.Config, connectTime)
		switch {
		case err == nil:
			r.since = time.Now()
			return l, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		r.Config.logger().Info("fabric not reached", "remote", r.Address, "err", err)
	}
}

func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}
