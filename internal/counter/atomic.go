//go:build race || !(amd64 || arm64)

package counter

import "sync/atomic"

// A Counter is a number with one writer at a time. The zero value is 0.
type Counter struct{ n atomic.Uint64 }

// Add adds n. [the writer]
func (c *Counter) Add(n uint64) { c.n.Store(c.n.Load() + n) }

// Set makes it n. [the writer]
func (c *Counter) Set(n uint64) { c.n.Store(n) }

// Load returns the number, as it is now or was a moment ago.
func (c *Counter) Load() uint64 { return c.n.Load() }
