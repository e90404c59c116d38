package portmap

import (
	"net/netip"
	"time"
)

// A limiter is a token bucket per source, in a table of fixed size. It keeps the sources of the
// latest datagrams. A flood from many made-up addresses evicts quiet sources, which costs them
// nothing because a new entry starts with a full bucket. A loud real source stays in the table
// because it keeps sending. [SDP-15-2]
type limiter struct {
	rate  float64 // tokens per second
	burst float64
	max   int
	m     map[netip.Prefix]*bucket
	head  bucket // ring of buckets, most recently used after head
}

type bucket struct {
	prev, next *bucket
	source     netip.Prefix
	tokens     float64
	at         time.Time
}

func newLimiter(rate, burst float64, entries int) *limiter {
	l := &limiter{rate: rate, burst: burst, max: entries, m: make(map[netip.Prefix]*bucket)}
	l.head.prev, l.head.next = &l.head, &l.head
	return l
}

// allow takes one token from the bucket of the source.
func (l *limiter) allow(now time.Time, from netip.Addr) bool {
	if l.rate <= 0 {
		return true
	}
	k := sourceOf(from)
	b := l.m[k]
	if b == nil {
		if len(l.m) >= l.max {
			b = l.head.prev // evict the least recently used and reuse its memory
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

// sourceOf returns the addresses that one party can be assumed to own: an IPv4 address, or an IPv6
// network of 64 bits.
func sourceOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 64
	if a.Is4() {
		bits = 32
	}
	p, _ := a.Prefix(bits)
	return p
}
