package bench

import (
	"context"
	"testing"
	"time"
)

// A lateLane completes every operation at once, and receives the last sent message.
type lateLane struct {
	posted int
	last   int // length of the message that was sent last
}

func (l *lateLane) post(n int) error {
	l.posted += n
	return nil
}

func (l *lateLane) reap(context.Context, bool) (int, error) {
	n := l.posted
	l.posted = 0
	return n, nil
}

func (l *lateLane) send(_ context.Context, n int, _ bool) error {
	l.last = n
	return nil
}

func (l *lateLane) recv(context.Context, bool) (int, error) { return l.last, nil }

func (l *lateLane) close() {}

// TestMeasureLate: a measurement carries out one operation even if the time is over before the
// first, as on a busy machine. Without any operation, there would be no median.
func TestMeasureLate(t *testing.T) {
	over := time.Now().Add(-time.Second)
	trips, err := pingPong(t.Context(), spec{Op: OpWait, Size: 64}, &lateLane{}, over, nil)
	if err != nil || len(trips) != 1 {
		t.Errorf("%d round trips, %v", len(trips), err)
	}
	n, err := push(t.Context(), spec{Op: OpSend, Size: 64}, &lateLane{}, over, nil)
	if err != nil || n == 0 {
		t.Errorf("%d operations, %v", n, err)
	}
}
