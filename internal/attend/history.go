package attend

import (
	"math/bits"
	"sync/atomic"
)

// A history has the last waits of a process.
type history struct {
	lists [16]atomic.Uint32 // for each the id of its Waiters
	n     atomic.Uint32     // waits so far
	ids   atomic.Uint32     // that were given away
}

var recent history

// others adds a wait in ws and returns about how many other waits there are. A goroutine
// that waits and had not begun of late is none of them: its connection is idle. Nor is a
// list that has had a wait and has none now: its connection may have been closed.
func (h *history) others(ws *Waiters) int {
	id := ws.id.Load()
	if id == 0 {
		id = h.ids.Add(1)
		ws.id.Store(id)
	}
	h.lists[h.n.Add(1)%uint32(len(h.lists))].Store(id)
	var seen uint64
	for i := range h.lists {
		if other := h.lists[i].Load(); other != 0 {
			seen |= 1 << (other % 64)
		}
	}
	return min(bits.OnesCount64(seen)-1, int(parked.Load()))
}
