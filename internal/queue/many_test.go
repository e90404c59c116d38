package queue

import (
	"errors"
	"slices"
	"testing"
)

// PostN takes what fits and says how many that were.
func TestPostN(t *testing.T) {
	w := Work[int]{Limit: 5}
	if n, err := w.PostN([]int{1, 2, 3}); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := w.PostN([]int{4, 5, 6, 7}); n != 2 || !errors.Is(err, ErrFull) {
		t.Errorf("%d, %v, want 2 and full", n, err)
	}
	if n, err := w.PostN(nil); n != 0 || err != nil {
		t.Errorf("%d, %v for nothing", n, err)
	}
	if c := w.Counts(); c.Posted != 5 || c.Started != 0 {
		t.Errorf("%+v", c)
	}
}

// What PeekN shows is started one by one, and only what was started counts as
// started when the queue is flushed.
func TestPeekN(t *testing.T) {
	var w Work[int]
	w.PostN([]int{10, 11, 12, 13, 14})
	buf := make([]int, 3)
	n, first := w.PeekN(buf)
	if n != 3 || first != 0 || !slices.Equal(buf, []int{10, 11, 12}) {
		t.Fatalf("%d from %d: %v", n, first, buf)
	}
	w.MarkStarted(0)
	w.MarkStarted(1)
	if v, seq, ok := w.Peek(); v != 12 || seq != 2 || !ok {
		t.Errorf("next is %d, number %d, %v", v, seq, ok)
	}
	w.Finish(0)
	var started []bool
	w.Flush(func(_ *int, s bool) { started = append(started, s) })
	if !slices.Equal(started, []bool{true, false, false, false}) {
		t.Errorf("started: %v", started)
	}
	if n, first = w.PeekN(buf); n != 0 || first != 5 {
		t.Errorf("%d from %d after the flush", n, first)
	}
}
