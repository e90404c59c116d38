package attend

import (
	"math/bits"
	"sync/atomic"
)

// A history records the last 16 waits of a process.
type history struct {
	lists [16]atomic.Uint32 // ids of the Waiters of the last waits
	n     atomic.Uint32     // number of waits so far
	ids   atomic.Uint32     // number of ids assigned
}

// others records a wait in ws, and returns approximately how many other Waiters have sleeping
// goroutines. others counts only the Waiters of the last 16 waits, because an older wait belongs to
// an idle connection. The result is at most the number of parked goroutines, because some of the 16
// waits may be over.
func (h *history) others(ws *Waiters) int {
	id := ws.id.Load()
	if id == 0 {
		id = h.ids.Add(1)
		ws.id.Store(id)
	}
	h.lists[h.n.Add(1)%uint32(len(h.lists))].Store(id)
	return h.waiters() - 1
}

// waiters returns approximately how many Waiters have sleeping goroutines.
func (h *history) waiters() int {
	var seen uint64
	for i := range h.lists {
		if other := h.lists[i].Load(); other != 0 {
			seen |= 1 << (other % 64)
		}
	}
	return min(bits.OnesCount64(seen), int(process.parked.Load())+1)
}
