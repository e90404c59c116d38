//go:build !linux

package frameio

import "viaduct/internal/doze"

// Expects is always false here.
func (c *Conn) Expects() bool { return false }

// Doze is always false here.
func (c *Conn) Doze(*doze.Sleeper) bool { return false }
