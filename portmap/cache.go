package portmap

import (
	"net/netip"
	"time"
)

// A cacheKey has all parameters of a request, because an answer is reused only for an equal
// request. [D-64]
type cacheKey struct {
	server, service netip.AddrPort
	local           netip.Addr // source address of the request
}

// A cacheEntry is an answer, or records that there was no mapping.
type cacheEntry struct {
	m   Mapped
	err error     // ErrDenied or ErrNoAnswer
	end time.Time // time from which on the entry has expired
}

// A cache stores outcomes of requests. The methods get the time as an argument. The size is
// bounded: a full cache drops expired entries, or an arbitrary entry if none has expired. A cache
// is not safe for concurrent use.
type cache struct {
	m   map[cacheKey]cacheEntry
	max int
}

// get returns the entry of k. It returns false if there is none, or if the entry has expired. An
// expired entry is removed. [SDP-7.3.1.4-2] [SDP-7.3.1.4-3]
func (c *cache) get(now time.Time, k cacheKey) (cacheEntry, bool) {
	e := c.m[k] // the zero entry counts as expired
	if !now.Before(e.end) {
		delete(c.m, k)
		return cacheEntry{}, false
	}
	e.m.Cached = true
	return e, true
}

// put stores e for its lifetime. A lifetime of zero means a single connection, so such an answer is
// not stored, and an earlier answer for k is removed.
func (c *cache) put(now time.Time, k cacheKey, e cacheEntry) {
	if !now.Before(e.end) { // [SDP-7.3.1.4-1] [SDP-7.3.1.4-4]
		delete(c.m, k)
		return
	}
	if _, ok := c.m[k]; !ok && len(c.m) >= c.max {
		c.shrink(now)
	}
	c.m[k] = e // [SDP-7.3.1.4-1]
}

func (c *cache) shrink(now time.Time) {
	for k, e := range c.m {
		if !now.Before(e.end) {
			delete(c.m, k)
		}
	}
	for k := range c.m {
		if len(c.m) < c.max {
			return
		}
		delete(c.m, k)
	}
}

// forget removes every entry of a service, including denials.
func (c *cache) forget(service netip.AddrPort) {
	for k := range c.m {
		if k.service == service {
			delete(c.m, k)
		}
	}
}
