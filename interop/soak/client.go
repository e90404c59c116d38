package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/interop/internal/mixed"
)

// A client makes connections to the server, each with a random behaviour.
type client struct {
	at         addresses
	nodes      map[string]mixed.Node
	transports []string
	sum        total
	killed     atomic.Uint64
	log        bool

	mu    sync.Mutex
	wrong error
}

func newClient(at addresses, only string) (*client, error) {
	c := &client{at: at, nodes: map[string]mixed.Node{}}
	for _, transport := range mixed.Transports() {
		if only != "" && transport != only {
			continue
		}
		c.transports = append(c.transports, transport)
		n, err := mixed.Open(transport, mixed.Settings{Patience: time.Minute})
		if err != nil {
			return nil, err
		}
		c.nodes[transport] = n
	}
	return c, nil
}

func (c *client) close() {
	for _, n := range c.nodes {
		n.Close()
	}
}

func (c *client) regions() (all int) {
	for _, n := range c.nodes {
		all += n.Regions()
	}
	return all
}

func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong == nil {
		c.wrong = err
	}
	if c.log {
		fmt.Fprintln(os.Stderr, err)
	}
}

// takeWrong returns the first error since the last call, or nil.
func (c *client) takeWrong() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.wrong
	c.wrong = nil
	return err
}

// round keeps conns connections open for length, and returns when all have ended.
func (c *client) round(ctx context.Context, conns int, length time.Duration, seed uint64) {
	end := time.Now().Add(length)
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			// The first pause spreads the set-ups over a second.
			for pause(ctx, r.IntN(1000)); time.Now().Before(end) && ctx.Err() == nil; pause(ctx, 50+r.IntN(200)) {
				transport := c.transports[r.IntN(len(c.transports))]
				c.one(ctx, r, transport)
			}
		})
	}
	all.Wait()
}

func pause(ctx context.Context, ms int) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(ms) * time.Millisecond):
	}
}

// one makes a connection of a transport with a random behaviour, and returns when the connection
// has ended.
func (c *client) one(ctx context.Context, r *rand.Rand, transport string) {
	i := draw(r)
	b := behaviours[i]
	life, cancel := context.WithTimeoutCause(ctx, b.plan.For+b.plan.Idle+2*patience, errHang)
	defer cancel()
	conn, err := c.nodes[transport].Dial(life, c.at[transport][i], b.plan)
	if err != nil {
		if ctx.Err() == nil {
			c.fail(fmt.Errorf("%s: dial: %w", transport, err))
		}
		return
	}
	if b.killed {
		var kill context.CancelCauseFunc
		life, kill = context.WithCancelCause(life)
		t := time.AfterFunc(time.Duration(r.Int64N(int64(b.plan.For))), func() { kill(errKilled) })
		defer t.Stop()
	}
	tally, err := conn.Run(life)
	c.sum.add(tally, err)
	switch {
	case ctx.Err() != nil || err == nil:
	case errors.Is(err, errKilled) && !errors.Is(err, mixed.ErrBroken):
		c.killed.Add(1)
	default:
		c.fail(fmt.Errorf("%s, a connection that %s: %w", transport, b.name, err))
	}
}

var errKilled = errors.New("killed on purpose")

func draw(r *rand.Rand) int {
	all := 0
	for _, b := range behaviours {
		all += b.weight
	}
	n := r.IntN(all)
	for i, b := range behaviours {
		if n -= b.weight; n < 0 {
			return i
		}
	}
	return 0
}
