package sdpcore

// A heldRun is a run of payload that waits for a read.
type heldRun struct {
	n       int
	private bool // whether the payload is in a Private Buffer
}

// held is the received payload that no read has taken yet, oldest first. It occupies Private Buffers,
// or memory of the driver.
type held struct {
	*common
	cr        *credits
	runs      deque[heldRun]
	n         int // bytes
	compacted int // part of n outside Private Buffers
}

// add appends n bytes in a Private Buffer.
func (h *held) add(n int) {
	h.do(Action{Op: OpHold, N: n})
	h.runs.push(heldRun{n: n, private: true})
	h.n += n
}

// addLocal appends n bytes that are in memory of the driver.
func (h *held) addLocal(n int) {
	h.runs.push(heldRun{n: n})
	h.n += n
	h.compacted += n
}

// move moves bytes from the front to read r, as many as there are and r has room for.
func (h *held) move(r *read) {
	n := min(r.n-r.off, h.n)
	h.do(Action{Op: OpCopy, ID: r.id, Off: r.off, N: n})
	r.off += n
	h.consume(n)
}

// drop drops all bytes.
func (h *held) drop() {
	if n := h.n; n > 0 {
		h.do(Action{Op: OpDrop, N: n})
		h.consume(n)
	}
}

// consume counts n bytes as consumed, and each Private Buffer without held bytes as posted again.
func (h *held) consume(n int) {
	h.n -= n
	h.cr.grow(n)
	for n > 0 {
		r := h.runs.at(0)
		k := min(n, r.n)
		r.n -= k
		n -= k
		if !r.private {
			h.compacted -= k
		}
		if r.n == 0 {
			if r.private {
				h.cr.free++
			}
			h.runs.pop()
		}
	}
}

// compact copies the newest payload to free its Private Buffer, if buffers run low and the payload
// fills at most half of the buffer. A buffer with a single byte must not cost the peer a whole
// credit. [SDP-9.5.6-1] [D-79]
func (h *held) compact() {
	// If more than half of the buffers are free, nothing is copied. Otherwise payload is held,
	// because only held payload fills buffers.
	if h.cr.free > h.cr.pool/2 {
		return
	}
	r := h.runs.at(h.runs.len() - 1)
	if !r.private || r.n > h.p.RecvSize/2 || h.compacted+r.n > h.p.RecvBudget {
		return
	}
	h.do(Action{Op: OpCompact, N: r.n})
	h.stats.CompactedBytes += uint64(r.n)
	r.private = false
	h.compacted += r.n
	h.cr.free++
	// Merge the copy with the preceding run. A preceding run exists, because at least two Private
	// Buffers are full here, even with the smallest pool of three.
	if before := h.runs.at(h.runs.len() - 2); !before.private {
		before.n += r.n
		h.runs.remove(h.runs.len() - 1)
	}
}

// resume continues on a new connection. The held bytes are outside of its Private Buffers.
func (h *held) resume() {
	for i := range h.runs.len() {
		if r := h.runs.at(i); r.private {
			r.private = false
			h.compacted += r.n
		}
	}
}
