package verbs

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A lateConn is a connection whose peer ends it after a time.
type lateConn struct {
	net.Conn
	after time.Duration
	done  chan struct{}
}

func (c *lateConn) Close() error {
	time.AfterFunc(c.after, func() { close(c.done) })
	return nil
}

func (c *lateConn) Done() <-chan struct{} { return c.done }

// TestEndStream: ping waits for the peer's end of a connection, but not for ever.
func TestEndStream(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{0: 0, lastTrip / 2: lastTrip / 2, time.Hour: lastTrip} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			endStream(&lateConn{after: after, done: make(chan struct{})})
			if took := time.Since(start); took != want {
				t.Errorf("a peer that ends after %v: %v, want %v", after, took, want)
			}
		})
	}
}

// TestEndsWith: a deadline that is being set when the calls return does not stay.
func TestEndsWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deadline time.Time
		ctx, cancel := context.WithCancel(t.Context())
		release := endsWith(ctx, func(d time.Time) error {
			if !d.IsZero() {
				time.Sleep(time.Second)
			}
			deadline = d
			return nil
		})
		cancel()
		release()
		time.Sleep(time.Minute)
		if !deadline.IsZero() {
			t.Errorf("the deadline is %v", deadline)
		}
	})
}
