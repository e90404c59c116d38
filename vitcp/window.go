package vitcp

import "sync/atomic"

// A readWindow limits the RDMA Reads of one direction. On the requesting side the send role calls
// take and the receive role calls done. On the serving side it is the other way round.
// [VIT-2.2.2.2.6-2] [VIT-2.2.2.2.6-3] [V-26]
type readWindow struct {
	limit uint32 // maximum number of outstanding requests; fixed at set-up
	taken atomic.Uint32
	given atomic.Uint32
}

// outstanding returns the number of requests without a complete response.
func (w *readWindow) outstanding() int { return int(w.taken.Load() - w.given.Load()) }

// take counts one more request. If the window is full, it returns false and counts nothing. [V-27]
func (w *readWindow) take() bool {
	n := w.taken.Load()
	if n-w.given.Load() >= w.limit {
		return false
	}
	w.taken.Store(n + 1)
	return true
}

// done counts one complete response.
func (w *readWindow) done() { w.given.Add(1) }
