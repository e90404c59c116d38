package vitcp

import "viaduct/internal/wire/vitcpwire"

// An assembly checks the order of the segments of incoming messages. Messages do not interleave,
// with one exception: segments of Read Responses may come between segments of other messages. So an
// assembly has a progress for responses and another for all other messages. [VIT-2.2.2.2.3-5]
// [VIT-2.2.2.2.3-6] [V-28] [V-37] [V-38]
type assembly struct {
	started bool             // a numbered message has begun
	last    vitcpwire.Number // number of the message that began last
	data    progress         // Send, RDMA Write, RDMA Read Request
	resp    progress         // RDMA Read Response
}

// A progress is the state of an incomplete message.
type progress struct {
	active bool             // the message has begun and not ended
	typ    vitcpwire.Type   // type of all segments of the message
	number vitcpwire.Number // number of the message
	offset uint32           // payload bytes received: the Data Offset of the next segment
}

// segment checks the next segment against the previous segment, and reports whether a message
// begins. payload is the length without headers. read is our oldest Read without a complete
// response, or nil. The error is a *ProtocolError.
func (a *assembly) segment(h *vitcpwire.Header, payload int, read *readOut) (first bool, err error) {
	p := &a.data
	switch h.Type {
	case vitcpwire.ReadResponse:
		p = &a.resp
		if read == nil {
			return false, framingf("read response %d without a request", uint32(h.Number))
		}
		if h.Number != read.number { // responses come in request order [V-37]
			return false, framingf("read response %d, awaited %d", uint32(h.Number), uint32(read.number))
		}
	case vitcpwire.Send, vitcpwire.Write, vitcpwire.ReadRequest:
		if !p.active { // messages arrive in order [VIT-3.1-15]
			// The first message may have any number. Each later number is the last plus 1.
			if a.started && h.Number != a.last.Add(1) { // [VIT-3.1-10] [VIT-3.1-11] [V-37]
				return false, framingf("message %d after %d", uint32(h.Number), uint32(a.last))
			}
		}
	}
	end := h.Flags&vitcpwire.EndOfMessage != 0
	if first = !p.active; first {
		if h.Offset != 0 { // [VIT-3.1-8]
			return false, framingf("message %d begins at offset %d", uint32(h.Number), h.Offset)
		}
		if h.Type.Numbered() {
			a.started, a.last = true, h.Number
		}
		*p = progress{active: true, typ: h.Type, number: h.Number}
	} else {
		switch {
		case h.Type != p.typ:
			return false, framingf("%v inside %v %d", h.Type, p.typ, uint32(p.number))
		case h.Number != p.number: // [VIT-3.1-13]
			return false, framingf("message %d inside message %d", uint32(h.Number), uint32(p.number))
		case h.Offset != p.offset: // [V-38]
			return false, framingf("offset %d in message %d, expected %d", h.Offset, uint32(p.number), p.offset)
		}
	}
	if uint64(p.offset)+uint64(payload) > 1<<32-1 { // [V-08]
		return false, framingf("message %d is longer than 2^32-1 bytes", uint32(p.number))
	}
	p.offset += uint32(payload)
	p.active = !end
	return first, nil
}

// inside reports whether a message has begun whose last segment has not arrived.
func (a *assembly) inside() bool { return a.data.active || a.resp.active }
