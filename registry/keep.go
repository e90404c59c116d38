package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// MinLease is the shortest lease accepted by Keep.
const MinLease = time.Second

// A Registration is a record maintained in a registry by Keep. It is safe for concurrent use.
type Registration struct {
	end    context.CancelFunc
	done   chan struct{}
	close  sync.Once
	result error // valid after done is closed
}

// Keep registers r and renews the lease until the Registration is closed or ctx has ended. It
// returns after the first attempt to register r, with the error of a failed attempt. If the lease
// ends later because the registry was unreachable for too long, Keep registers r again as soon as
// possible, for example after a restart of the registry. report, if not nil, is called with an
// error when renewing begins to fail, and with nil when r is registered again. It is not called
// concurrently with itself.
func Keep(ctx context.Context, reg Registry, r Record, lease time.Duration, report func(error)) (*Registration, error) {
	if lease < MinLease {
		return nil, fmt.Errorf("registry: lease of %v is shorter than %v", lease, MinLease)
	}
	l, err := reg.Register(ctx, r, lease)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	k := &Registration{end: end, done: make(chan struct{})}
	if report == nil {
		report = func(error) {}
	}
	go func() {
		defer close(k.done)
		k.result = keep(ctx, reg, r, lease, l, report)
	}()
	return k, nil
}

// Close withdraws the registration, and waits at most two seconds. If the withdrawal fails, Close
// returns the error, and the registration ends with the lease. Close may be called more than once.
func (k *Registration) Close() error {
	k.close.Do(k.end)
	<-k.done
	return k.result
}

// releaseTime is the time limit for withdrawing a registration.
const releaseTime = 2 * time.Second

func keep(ctx context.Context, reg Registry, r Record, lease time.Duration, l Lease, report func(error)) error {
	// parts is the number of renewals per lease. With several, the lease survives a lost renewal.
	// After a failure the pauses are a quarter as long.
	const parts = 3
	pause := lease / parts
	failed := false
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			if l == nil {
				return nil
			}
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
			defer cancel()
			return l.Release(last)
		case <-t.C:
		}
		err := ErrLeaseLost
		if l != nil {
			err = bounded(ctx, lease/parts, l.Renew)
		}
		if errors.Is(err, ErrLeaseLost) {
			l = nil
			err = bounded(ctx, lease/parts, func(ctx context.Context) (err error) {
				l, err = reg.Register(ctx, r, lease)
				return err
			})
			if err != nil {
				l = nil
			}
		}
		if ctx.Err() != nil {
			t.Reset(0)
			continue
		}
		if (err != nil) != failed {
			failed = err != nil
			report(err)
		}
		next := pause
		if failed {
			next = pause / 4
		}
		t.Reset(next)
	}
}

func bounded(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return f(ctx)
}
