package queue

import "testing"

func TestTake(t *testing.T) {
	var w Work[int]
	if _, ok := w.Take(); ok {
		t.Fatal("took from an empty queue")
	}
	next := 0
	for i := range 100 {
		if _, err := w.Post(i); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			v, ok := w.Take()
			if !ok || v != next {
				t.Fatalf("took %d, %t, want %d", v, ok, next)
			}
			next++
		}
	}
	for ; next < 100; next++ {
		if v, ok := w.Take(); !ok || v != next {
			t.Fatalf("took %d, %t, want %d", v, ok, next)
		}
	}
	if c := w.Counts(); c != (Counts{100, 100, 100, 100}) {
		t.Errorf("%+v", c)
	}
}
