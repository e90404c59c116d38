package queue

import (
	"sync"
	"testing"
)

func TestFIFO(t *testing.T) {
	var q FIFO[int]
	if _, ok := q.Pop(); ok {
		t.Fatal("popped from an empty queue")
	}
	next := 0
	for i := range 100 { // the queue grows with its oldest entry at any index
		if q.Push(i); i%3 == 0 {
			if v, ok := q.Pop(); !ok || v != next {
				t.Fatalf("popped %d, %t, want %d", v, ok, next)
			}
			next++
		}
		if q.Len() != i+1-next {
			t.Fatalf("%d entries, want %d", q.Len(), i+1-next)
		}
	}
	for ; next < 100; next++ {
		if v, ok := q.Pop(); !ok || v != next {
			t.Fatalf("popped %d, %t, want %d", v, ok, next)
		}
	}
	if _, ok := q.Pop(); ok || q.Len() != 0 {
		t.Errorf("%d entries left", q.Len())
	}
}

// TestFIFOTogether pushes and pops concurrently. Each entry must be popped once, and a consumer
// must see the entries of each pusher in order.
func TestFIFOTogether(t *testing.T) {
	const pushers, each = 4, 1000
	var q FIFO[int]
	var wg sync.WaitGroup
	var seen [pushers * each]int32
	var mu sync.Mutex
	for p := range pushers {
		wg.Go(func() {
			for i := range each {
				q.Push(p*each + i)
			}
		})
		wg.Go(func() {
			last := [pushers]int{-1, -1, -1, -1}
			for n := 0; n < each; {
				v, ok := q.Pop()
				if !ok {
					continue
				}
				n++
				mu.Lock()
				seen[v]++
				mu.Unlock()
				if from := v / each; v <= last[from] {
					t.Errorf("%d behind %d", v, last[from])
				} else {
					last[from] = v
				}
			}
		})
	}
	wg.Wait()
	for v, n := range seen {
		if n != 1 {
			t.Errorf("%d popped %d times", v, n)
		}
	}
}
