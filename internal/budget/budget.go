// Package budget decides whether an uncertain effort is worth making, for example polling before
// sleeping, reading ahead, or collecting small frames into one write.
package budget

import "sync/atomic"

// A Rule says how a [Budget] backs off. With the zero Rule a Budget never backs off.
type Rule struct {
	Grace uint8  // misses in a row that have no consequence
	Hits  uint8  // hits that halve the number of skipped occasions; 0 means 1
	Max   uint16 // largest number of occasions skipped after a miss
}

// A Budget remembers whether an effort paid off. After a miss the next occasion is skipped; after
// further misses 3, 7, 15 and so on up to Rule.Max are skipped. Hits halve the number of skipped
// occasions. The zero value is ready for use, with the same Rule in each call. All methods may be
// called by several goroutines at once.
type Budget struct {
	misses  atomic.Int32 // misses in a row
	hits    atomic.Int32 // hits since the penalty last fell
	penalty atomic.Int32 // occasions skipped after the last miss; hits halve the number
	skip    atomic.Int32 // occasions still to be skipped
}

// Worth reports whether to make the effort now. If the result is false, the occasion counts as
// skipped.
func (b *Budget) Worth() bool {
	if b.skip.Load() <= 0 {
		return true
	}
	b.skip.Add(-1)
	return false
}

// Hit records that an effort paid off.
func (b *Budget) Hit(r *Rule) {
	if b.misses.Load() != 0 {
		b.misses.Store(0)
	}
	p := b.penalty.Load()
	if p == 0 {
		return
	}
	if n := b.hits.Add(1); n < int32(r.Hits) {
		return
	}
	b.hits.Store(0)
	b.penalty.Store(p / 2)
}

// Miss records that an effort did not pay off.
func (b *Budget) Miss(r *Rule) {
	b.hits.Store(0)
	if n := b.misses.Load(); n < int32(r.Grace) {
		b.misses.Store(n + 1)
		return
	}
	p := min(2*b.penalty.Load()+1, int32(r.Max))
	b.penalty.Store(p)
	b.skip.Store(p)
}

// Done calls Hit or Miss.
func (b *Budget) Done(r *Rule, hit bool) {
	if hit {
		b.Hit(r)
	} else {
		b.Miss(r)
	}
}

// Reset forgets all hits and misses.
func (b *Budget) Reset() {
	b.misses.Store(0)
	b.hits.Store(0)
	b.penalty.Store(0)
	b.skip.Store(0)
}
