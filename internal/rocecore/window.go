package rocecore

import "viaduct/internal/wire/ib"

// A window limits the number of unacknowledged packets. A loss halves the size, only once for all
// packets outstanding at the time. The size grows by one packet for each acknowledged window.
// [ROCE-REQ-16]
type window struct {
	size, limit int
	acked       int    // acknowledged packets since size changed
	recovered   ib.PSN // a loss before this number belongs to the previous loss
	losing      bool   // recovered is valid
}

// minWindow leaves room for packets after a lost packet, because only a later packet makes the peer
// send a NAK.
const minWindow = 4

// maxUnasked is the greatest number of packets per request for an acknowledgement. [ROCE-REQ-4]
const maxUnasked = 32

func (w *window) start(limit int) { w.size, w.limit = limit, limit }

// asks reports whether a packet should request an acknowledgement. n is the number of packets since
// the last request, including this packet.
func (w *window) asks(n int) bool { return n >= min(maxUnasked, max(1, w.size/4)) }

// lost records the loss of packet oldest. sent is the number of the next new packet.
func (w *window) lost(oldest, sent ib.PSN) {
	if w.losing && oldest.Less(w.recovered) {
		return
	}
	w.size = max(min(minWindow, w.limit), w.size/2)
	w.acked, w.recovered, w.losing = 0, sent, true
}

// acknowledged records that n packets were acknowledged, and that oldest is now the oldest
// unacknowledged packet.
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
