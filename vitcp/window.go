package vitcp

import "sync/atomic"

// A readWindow limits the RDMA Reads of a direction. On the requesting side the send role calls
// take and the receive role calls done. On the serving side the roles are exchanged.
// [VIT-2.2.2.2.6-2] [VIT-2.2.2.2.6-3] [V-26]
type readWindow struct {
	limit uint32 // maximum number of outstanding requests; fixed at set-up
	taken atomic.Uint32
	given atomic.Uint32
}

// outstanding returns the number of requests without a complete response.
func (w *readWindow) outstanding() int { return int(w.taken.Load() - w.given.Load()) }

// take counts a request, or returns false if the window is full. [V-27]
func (w *readWindow) take() bool {
	n := w.taken.Load()
	if n-w.given.Load() >= w.limit {
		return false
	}
	w.taken.Store(n + 1)
	return true
}

// done counts a complete response.
func (w *readWindow) done() { w.given.Add(1) }
