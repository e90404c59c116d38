package frameio

import "viaduct/internal/doze"

// Expects tells whether something was sent since a consumer last dozed, so that
// what comes next may be an answer.
func (c *Conn) Expects() bool {
	return c.tx.batches.Load() != c.rx.dozed.Load() && c.tx.state.Load() == idle
}

// Doze adds the stream to what s sleeps on. It is false if a consumer can't sleep
// on it instead of calling Unpoll: it is portable or has ended, somebody else is
// reading, or what is to be sent waits for room. The passive
// goroutine is left where it is, away from the socket as a rule: if both are woken
// one of them reads. Close wakes the sleeper. Who is woken by an arrival polls.
func (c *Conn) Doze(s *doze.Sleeper) bool {
	sock, r := c.sock.Load(), &c.rx
	if sock == nil || c.tx.state.Load() != idle || !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if !r.started || r.closed || r.done || r.large {
		return false
	}
	r.dozed.Store(c.tx.batches.Load())
	return s.Add(sock.fd) // and tearDown, which sets closed before it wakes everybody, has yet to
}
