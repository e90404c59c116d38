package fcvi

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSpans compares spans with a map of bytes, while random parts of a message arrive in random
// order.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		var s spans
		var here [2 * size]bool
		front := func() (n uint32) {
			for here[n] {
				n++
			}
			return n
		}
		for range rapid.IntRange(0, 60).Draw(t, "parts") {
			off := rapid.Uint32Range(0, size).Draw(t, "off")
			n := rapid.Uint32Range(0, 6).Draw(t, "n")
			inOrder := rapid.Bool().Draw(t, "inOrder")
			want := spanNew
			switch next := front(); {
			case inOrder && off > next:
				want = spanHole
			case inOrder && off < next:
				want = spanSeen
			default:
				for i := off; i < off+n; i++ {
					if here[i] {
						want = spanSeen
					}
				}
			}
			if got := s.add(off, n, inOrder); got != want {
				t.Fatalf("add(%d, %d, %v) = %d, want %d: %+v", off, n, inOrder, got, want, s)
			}
			if want == spanNew {
				for i := off; i < off+n; i++ {
					here[i] = true
				}
			}
			if s.next() != front() || !s.covers(front()) || s.covers(front()+1) {
				t.Fatalf("next %d, want %d: %+v", s.next(), front(), s)
			}
			at := s.front
			for _, b := range s.beyond {
				if b.from <= at || b.to <= b.from {
					t.Fatalf("not disjoint: %+v", s)
				}
				at = b.to
			}
		}
	})
}

// TestSpansFull: a peer can't cause an unlimited number of holes in a message, but existing holes
// can be filled.
func TestSpansFull(t *testing.T) {
	var s spans
	for i := range uint32(maxSpans) {
		if r := s.add(2+4*i, 2, false); r != spanNew {
			t.Fatalf("part %d: %d", i, r)
		}
	}
	if r := s.add(2+4*maxSpans, 2, false); r != spanFull {
		t.Errorf("one more: %d", r)
	}
	for i := range uint32(maxSpans) {
		if r := s.add(4*i, 2, false); r != spanNew {
			t.Fatalf("hole %d: %d", i, r)
		}
	}
	if !s.covers(4*maxSpans) || len(s.beyond) != 0 {
		t.Errorf("covers %d, beyond %v", s.front, s.beyond)
	}
}
