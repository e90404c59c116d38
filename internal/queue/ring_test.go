package queue

import (
	"runtime"
	"testing"
)

// TestRing pushes and pops concurrently, with rings of several capacities. Entries must be popped
// in the order of pushing, and the memory of a popped entry must be released.
func TestRing(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 8, 100} {
		var r Ring[*int]
		r.Init(n)
		if r.Cap() < max(n, 1) || r.Cap()&(r.Cap()-1) != 0 {
			t.Fatalf("capacity %d for %d", r.Cap(), n)
		}
		if r.Front() != nil || r.At(3) != nil || r.Len() != 0 {
			t.Fatal("a new ring is not empty")
		}
		const total = 5000
		go func() {
			for i := range total {
				for r.Len() == r.Cap() {
					runtime.Gosched()
				}
				r.Push(&i)
			}
		}()
		for i := 0; i < total; {
			k := 0
			for p := r.At(k); p != nil; p = r.At(k) {
				if **p != i+k {
					t.Fatalf("entry %d is %d", i+k, **p)
				}
				k++
			}
			for range k {
				r.Pop()
				i++
			}
			runtime.Gosched()
		}
		for _, p := range r.slots {
			if p != nil {
				t.Fatal("a popped entry is kept")
			}
		}
	}
}
