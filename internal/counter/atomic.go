//go:build race || !(amd64 || arm64)

package counter

import "sync/atomic"

// A Counter is a number with a single writer at a time. The zero value is 0.
type Counter struct{ n atomic.Uint64 }

// Add adds n. Only the writer calls Add.
func (c *Counter) Add(n uint64) { c.n.Store(c.n.Load() + n) }

// Set sets the number to n. Only the writer calls Set.
func (c *Counter) Set(n uint64) { c.n.Store(n) }

// Load returns the number, current or slightly old. Any goroutine may call Load.
func (c *Counter) Load() uint64 { return c.n.Load() }
