// Package budget decides whether an effort that may be in vain is worth making:
// looking for a moment before sleeping, sleeping at a socket, reading ahead,
// letting small frames pile up.
package budget

import "sync/atomic"

// A Rule says how a [Budget] backs off. With the zero Rule every occasion is
// worth the effort.
type Rule struct {
	Grace uint8  // misses in a row that cost nothing
	Hits  uint8  // hits that halve the number of occasions passed over; 0 is 1
	Max   uint16 // largest number of occasions passed over after a miss
}

// A Budget remembers whether an effort was of use. After a miss, the next 1
// occasion is passed over, after further misses 3, 7, 15 and so on up to
// Rule.Max; hits halve that. The zero value is ready for use, with the same Rule in
// each call. All methods may be called by several goroutines at once.
type Budget struct {
	misses  atomic.Int32 // in a row
	hits    atomic.Int32 // since the penalty last fell
	penalty atomic.Int32 // occasions passed over after the next miss, but for doubling
	skip    atomic.Int32 // occasions that are yet to be passed over
}

// Worth reports whether the effort is to be made on this occasion. If it is
// false the occasion counts as passed over.
func (b *Budget) Worth() bool {
	if b.skip.Load() <= 0 {
		return true
	}
	b.skip.Add(-1)
	return false
}

// Hit tells that an effort was of use.
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

// Miss tells that an effort was in vain.
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

// Done is Hit or Miss.
func (b *Budget) Done(r *Rule, hit bool) {
	if hit {
		b.Hit(r)
	} else {
		b.Miss(r)
	}
}

// Reset forgets what the budget remembers.
func (b *Budget) Reset() {
	b.misses.Store(0)
	b.hits.Store(0)
	b.penalty.Store(0)
	b.skip.Store(0)
}
