package portmap

import (
	"net/netip"
	"time"
)

// A limiter has a token bucket for each source, in a table of fixed size. The table has the sources
// of the latest datagrams. A flood from many forged addresses evicts sources that send rarely.
// Eviction does not harm such sources, because a new entry starts with a full bucket. A busy real
// source stays in the table, because the source continues to send. [SDP-15-2]
type limiter struct {
	rate  float64 // tokens per second
	burst float64 // tokens of a full bucket
	max   int     // largest number of buckets
	m     map[netip.Prefix]*bucket
	head  bucket // ring of buckets, in the order of their last use; the latest follows head
}

type bucket struct {
	prev, next *bucket
	source     netip.Prefix
	tokens     float64
	at         time.Time // time at which tokens was counted
}

func newLimiter(rate, burst float64, entries int) *limiter {
	l := &limiter{rate: rate, burst: burst, max: entries, m: make(map[netip.Prefix]*bucket)}
	l.head.prev, l.head.next = &l.head, &l.head
	return l
}

// allow takes a token from the bucket of the source, and returns false if the bucket is empty. With
// a rate of 0 or less, allow always returns true.
func (l *limiter) allow(now time.Time, from netip.Addr) bool {
	if l.rate <= 0 {
		return true
	}
	k := sourceOf(from)
	b := l.m[k]
	if b == nil {
		if len(l.m) >= l.max {
			b = l.head.prev // evicts the least recently used bucket and reuses its memory
			delete(l.m, b.source)
			b.unlink()
		} else {
			b = new(bucket)
		}
		b.source, b.tokens, b.at = k, l.burst, now
		l.m[k] = b
	} else {
		b.unlink()
		b.tokens = min(l.burst, b.tokens+l.rate*max(0, now.Sub(b.at).Seconds()))
		b.at = now
	}
	b.prev, b.next = &l.head, l.head.next
	b.prev.next, b.next.prev = b, b
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

func (b *bucket) unlink() {
	b.prev.next, b.next.prev = b.next, b.prev
}

// sourceOf returns the range of addresses assumed to belong to a single party: an IPv4 address, or
// an IPv6 network of 64 bits.
func sourceOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 64
	if a.Is4() {
		bits = 32
	}
	p, _ := a.Prefix(bits)
	return p
}
