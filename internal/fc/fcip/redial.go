package fcip

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// The pause before an attempt is doubled from firstPause to lastPause, because RFC 3821,
	// 8.1.2.1 requires a limit on repeated attempts. lastPause lets the members of a restarted
	// fabric join again within five seconds.
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second

	// connectTime limits the TCP connection of an attempt. A starting host that drops packets must
	// not delay the next attempt for minutes.
	connectTime = 2 * time.Second

	// settleTime is the minimum lifetime of a link that counts as working. After a link of shorter
	// lifetime the pauses continue to grow.
	settleTime = 5 * time.Second
)

// A Redialer dials a lost link again. One goroutine at a time may call its methods.
type Redialer struct {
	Address string // in the form host:port
	Config  Config

	pause time.Duration
	since time.Time // time at which the last link was made
}

// Dial pauses and dials until a link is made. Dial returns an error only when ctx ends: the cause
// of ctx.
func (r *Redialer) Dial(ctx context.Context) (*Link, error) {
	if time.Since(r.since) > settleTime {
		r.pause = firstPause
	}
	for {
		// A random quarter more or less spreads the attempts of members lost at the same time.
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
