package fcip

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// The pause before an attempt doubles from the first to the last: RFC 3821, 8.1.2.1 requires a
	// limit on repeated attempts. The last pause is short enough that a restarted fabric has its
	// members back within five seconds.
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second

	// connectTime bounds the TCP connection of an attempt: a host that drops packets while it
	// starts must not delay the next attempt for minutes.
	connectTime = 2 * time.Second

	// settleTime is how long a link must last to count as working. After a shorter one the pauses
	// continue to grow.
	settleTime = 5 * time.Second
)

// A Redialer restores a link each time it is lost. One goroutine at a time may call its methods.
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
		// A random quarter to either side spreads the attempts of members that were lost together.
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
