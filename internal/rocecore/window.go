package rocecore

import "viaduct/internal/wire/ib"

// A window bounds how many packets are without acknowledgement. It is halved when a packet is lost,
// once for the packets that were under way then, and grows by one packet for each window that is
// acknowledged. [ROCE-REQ-16]
type window struct {
	size, limit int
	acked       int    // packets since size changed
	recovered   ib.PSN // a loss before this number is part of the last one
	losing      bool   // recovered holds
}

// minWindow lets a NAK show a loss: a packet, and one behind it.
const minWindow = 4

// maxUnasked is how many packets go without asking for an acknowledgement, at most. [ROCE-REQ-4]
const maxUnasked = 32

func (w *window) start(limit int) { w.size, w.limit = limit, limit }

// asks reports whether the last of n packets since the last one that asked for an acknowledgement
// should ask.
func (w *window) asks(n int) bool { return n >= min(maxUnasked, max(1, w.size/4)) }

// lost notes that the packet oldest was lost when sent was the next one to be sent.
func (w *window) lost(oldest, sent ib.PSN) {
	if w.losing && oldest.Less(w.recovered) {
		return
	}
	w.size = max(min(minWindow, w.limit), w.size/2)
	w.acked, w.recovered, w.losing = 0, sent, true
}

// acknowledged notes that n packets were acknowledged.
func (w *window) acknowledged(n int, oldest ib.PSN) {
	if w.losing && !oldest.Less(w.recovered) {
		w.losing = false
	}
	w.acked += n
	if w.acked >= w.size {
		w.acked = 0
		w.size = min(w.limit, w.size+1)
	}
}
