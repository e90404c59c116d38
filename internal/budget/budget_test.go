package budget

import "testing"

// worth returns on how many of n occasions b allows the effort, if each has the same outcome.
func worth(b *Budget, r *Rule, n int, hit bool) (made int) {
	for range n {
		if b.Worth() {
			made++
			b.Done(r, hit)
		}
	}
	return made
}

func TestBackOff(t *testing.T) {
	for _, tc := range []struct {
		name  string
		rule  Rule
		skips []int // skipped after each miss in a row
	}{
		{"zero rule", Rule{}, []int{0, 0, 0}},
		{"doubling", Rule{Max: 15}, []int{1, 3, 7, 15, 15}},
		{"grace", Rule{Grace: 2, Max: 3}, []int{0, 0, 1, 3, 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b Budget
			for i, want := range tc.skips {
				if !b.Worth() {
					t.Fatalf("miss %d: not worth the effort after its pause", i)
				}
				b.Miss(&tc.rule)
				got := 0
				for ; b.skip.Load() > 0; got++ {
					if b.Worth() {
						t.Fatalf("miss %d: worth the effort during the pause", i)
					}
				}
				if got != want {
					t.Errorf("miss %d: %d occasions passed over, want %d", i, got, want)
				}
			}
		})
	}
}

// Hits make up for misses: the first hit, or as many as Rule.Hits requires.
func TestRecovery(t *testing.T) {
	for _, hits := range []uint8{0, 1, 4} {
		var b Budget
		rule := &Rule{Max: 255, Hits: hits}
		for range 8 {
			for !b.Worth() {
			}
			b.Miss(rule)
		}
		if p := b.penalty.Load(); p != 255 {
			t.Fatalf("penalty %d after eight misses", p)
		}
		for !b.Worth() {
		}
		for range 8 * max(int(hits), 1) {
			b.Hit(rule)
		}
		if p := b.penalty.Load(); p != 0 {
			t.Errorf("hits %d: penalty %d after eight times as many", hits, p)
		}
		b.Miss(rule)
		if p := b.penalty.Load(); p != 1 {
			t.Errorf("hits %d: penalty %d after one more miss", hits, p)
		}
	}
}

// An effort that never pays off is seldom made, and an effort that always pays off is always made.
func TestShare(t *testing.T) {
	var b Budget
	rule := &Rule{Grace: 4, Max: 15}
	worth(&b, rule, 100, false)
	if n := worth(&b, rule, 160, false); n != 10 {
		t.Errorf("%d of 160 efforts in vain, want 10", n)
	}
	b.Reset()
	if n := worth(&b, rule, 160, true); n != 160 {
		t.Errorf("%d of 160 efforts of use", n)
	}
}

func TestNoAllocations(t *testing.T) {
	var b Budget
	rule := &Rule{Max: 15}
	if n := testing.AllocsPerRun(100, func() { b.Worth(); b.Miss(rule); b.Hit(rule) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
