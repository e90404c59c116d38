package queue

import (
	"errors"
	"slices"
	"testing"
)

// TestPostN posts more requests than fit. PostN must post the requests that fit, and return their
// number.
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

// TestPeekN starts requests one by one after PeekN has returned them. A flush must treat only the
// started requests as started.
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

// TestRetire finishes requests out of order. Retire must call OnDone for each done request, then
// OnDones once, and reap the requests in the same step.
func TestRetire(t *testing.T) {
	var w Work[int]
	var told []int
	batches := 0
	w.OnDone = func(v int) { told = append(told, v) }
	w.OnDones = func() { batches++ }
	for v := range 6 {
		w.Post(v)
	}
	buf := make([]int, 4)
	if n := w.Retire(1, 3, buf); n != 0 || batches != 0 {
		t.Errorf("%d retired, %d batches, though the first is not finished", n, batches)
	}
	if n := w.Retire(0, 1, buf); n != 3 || !slices.Equal(buf[:3], []int{0, 1, 2}) || batches != 1 {
		t.Errorf("%d retired, %v, %d batches", n, buf, batches)
	}
	if n := w.Retire(3, 6, buf[:2]); n != 2 || buf[0] != 3 || buf[1] != 4 || batches != 2 {
		t.Errorf("%d retired, %v, %d batches", n, buf, batches)
	}
	if n := w.Retire(0, 0, buf); n != 1 || buf[0] != 5 {
		t.Errorf("%d retired, %v", n, buf)
	}
	if !slices.Equal(told, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("told of %v", told)
	}
}

// TestEmpty checks that a queue is empty only after OnDones has returned for the last requests and
// they were reaped. The queue is not yet empty when the requests are done.
func TestEmpty(t *testing.T) {
	var w Work[int]
	var during []bool
	w.OnDones = func() { during = append(during, w.done.Load() == w.posted.Load(), w.Empty()) }
	if !w.Empty() {
		t.Error("a new queue is not empty")
	}
	w.Post(1)
	w.Post(2)
	if w.Empty() {
		t.Error("a queue with requests is empty")
	}
	var got [1]int
	if n := w.Retire(0, 2, got[:]); n != 1 || w.Empty() {
		t.Errorf("%d taken, empty: %t", n, w.Empty())
	}
	w.Retire(0, 0, got[:])
	if !w.Empty() || !slices.Equal(during, []bool{true, false}) {
		t.Errorf("empty: %t; while it was told: %v", w.Empty(), during)
	}
}
