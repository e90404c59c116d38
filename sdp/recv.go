package sdp

import "slices"

// A receiver has the received payload that no read has taken yet: of the message being handled, and
// of earlier messages, which is held. Each piece is in a Private Buffer, in the lent buffer of a
// read, or in memory of its own. Conn.mu guards all fields; the inbox has a lock of its own.
type receiver struct {
	in    *inbox
	cur   []byte // payload of the message being handled
	index int    // index of the message's Private Buffer
	kept  bool   // whether the Private Buffer is still needed, or was released
	holds []hold // payload that waits for reads, from index head on
	head  int
	local [][]byte // memory of each RDMA Read in progress, oldest first; nil for one into a call's buffer
}

// A hold is payload waiting for a read.
type hold struct {
	b     []byte
	index int // index of the Private Buffer that contains b, or -1 if none does
}

// open begins the handling of a message with payload p in Private Buffer index.
func (r *receiver) open(index int, p []byte) {
	r.cur, r.index, r.kept = p, index, false
	if len(p) == 0 {
		r.in.release(index) // released before the machine answers, because the answer gives credit
		r.kept = true
	}
}

// close ends the handling of the message.
func (r *receiver) close() {
	if !r.kept {
		r.in.release(r.index)
	}
	r.cur = nil
}

// hold keeps the first n bytes of the message's payload for later reads.
func (r *receiver) hold(n int) {
	r.holds = append(r.holds, hold{r.cur[:n], r.index})
	r.kept = true
}

// holdCopy keeps p, which is in no Private Buffer, for later reads.
func (r *receiver) holdCopy(p []byte) { r.holds = append(r.holds, hold{p, -1}) }

// take moves n bytes from the front of the held payload to dst. If dst is nil, take drops the bytes.
func (r *receiver) take(dst []byte, n int) {
	for n > 0 {
		h := &r.holds[r.head]
		k := min(n, len(h.b))
		if dst != nil {
			if &dst[0] != &h.b[0] { // otherwise the bytes were received here directly
				copy(dst, h.b[:k])
			}
			dst = dst[k:]
		}
		h.b = h.b[k:]
		n -= k
		if len(h.b) == 0 {
			if h.index >= 0 {
				r.in.release(h.index)
			}
			*h = hold{}
			r.head++
		}
	}
	if r.head == len(r.holds) {
		r.holds, r.head = r.holds[:0], 0
	}
}

// compact copies the n bytes of the newest held payload out of its Private Buffer, and releases the
// buffer.
func (r *receiver) compact(n int) {
	h := &r.holds[len(r.holds)-1]
	index := h.index
	if before := len(r.holds) - 2; before >= r.head && r.holds[before].index < 0 {
		r.holds[before].b = append(r.holds[before].b, h.b[:n]...)
		*h = hold{}
		r.holds = r.holds[:len(r.holds)-1]
	} else {
		*h = hold{b: append(make([]byte, 0, max(n, 512)), h.b[:n]...), index: -1}
	}
	r.in.release(index)
}

// held returns a copy of the held payload.
func (r *receiver) held() (p []byte) {
	for _, h := range r.holds[r.head:] {
		p = append(p, h.b...)
	}
	return p
}

// move makes the receiver use the inbox of another stream. Held payload is copied, because its
// Private Buffers belong to the old stream.
func (r *receiver) move(in *inbox) {
	for i := r.head; i < len(r.holds); i++ {
		if h := &r.holds[i]; h.index >= 0 {
			h.b, h.index = slices.Clone(h.b), -1
		}
	}
	r.in, r.local = in, nil
}

// withdraw takes back the lent buffer of the waiting read, if any. From now on only RDMA Writes of
// the peer and our own RDMA Reads place bytes there. Bytes that arrived there and are not yet
// counted as read by the machine are copied to Private Buffers.
func (r *receiver) withdraw() {
	if !r.in.lends() {
		return
	}
	r.in.stream.Reclaim()
	if !r.in.lending() {
		return
	}
	for i := r.head; i < len(r.holds); i++ {
		if h := &r.holds[i]; h.index >= 0 {
			h.b = r.in.own(h.index, h.b)
		}
	}
	if r.cur != nil && !r.kept {
		r.cur = r.in.own(r.index, r.cur)
	}
	for i := range r.in.slots {
		r.in.own(i, nil)
	}
}

// fetched ends the oldest RDMA Read. Bytes fetched into memory of the receiver are held.
func (r *receiver) fetched() {
	b := r.local[0]
	r.local = r.local[1:]
	if b != nil {
		r.holdCopy(b)
	}
}
