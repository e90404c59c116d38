package bench

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestIntervals: the intervals of a measurement follow each other without a gap and add up to the
// whole measurement, for every operation.
func TestIntervals(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, nil) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	c, err := Dial(ctx, l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, s := range []spec{
		{Transport: "tcp", Op: OpStream, Size: 64, Doorbell: 1, Conns: 1},
		{Transport: "sdp", Op: OpStream, Size: 4096, Doorbell: 1, Conns: 3},
		{Transport: "vitcp", Op: OpSend, Size: 64, Doorbell: 1, Conns: 2},
		{Transport: "iwarp", Op: OpRead, Size: 4096, Doorbell: 1, Conns: 1},
		{Transport: "vitcp", Op: OpRate, Size: rateSize, Doorbell: 16, Conns: 1},
		{Transport: "iwarp", Op: OpWait, Size: 64, Doorbell: 1, Conns: 1},
		{Transport: "tcp", Op: OpChurn, Size: rateSize, Doorbell: 1, Conns: 1},
		{Transport: "vitcp", Op: OpSetup, Size: rateSize, Doorbell: 1, Conns: 1},
	} {
		var got []Interval
		p := &Plan{Interval: 2 * time.Millisecond, Tell: func(i Interval) { got = append(got, i) }}
		m, err := c.measure(ctx, s, 30*time.Millisecond, p.meter(s, 1))
		if err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		done, at := 0, 0.0
		for _, i := range got {
			if i.From != at || i.To <= i.From || i.Unit != Unit(s.Op) || (i.Value > 0) != (i.Done > 0) {
				t.Errorf("%v: %+v after %v s", s, i, at)
			}
			done, at = done+i.Done, i.To
		}
		// On a busy machine, a single interval may end after the measurement.
		if done != int(m.messages) || len(got) == 0 {
			t.Errorf("%v: %d intervals with %d done, the measurement %v", s, len(got), done, m.messages)
		}
	}
}

// TestIntervalOfNothing: intervals are reported even while a measurement makes no progress.
func TestIntervalOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Interval
		p := &Plan{Interval: time.Second, Tell: func(i Interval) { got = append(got, i) }}
		m := p.meter(spec{Op: OpWait}, 1)
		end := m.watch()
		m.trip(3 * time.Microsecond)
		m.trip(time.Microsecond)
		m.trip(2 * time.Microsecond)
		time.Sleep(3*time.Second + time.Millisecond)
		m.add(1)
		end()
		if len(got) != 4 || got[0].Done != 3 || got[0].Value != 2 || got[1].Done != 0 ||
			got[1].Value != 0 || got[2].To != 3 || got[3].Done != 1 {
			t.Errorf("%+v", got)
		}
	})
}
