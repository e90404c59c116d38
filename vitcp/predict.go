package vitcp

import (
	"cmp"

	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A guess holds the lengths and types from which Predict predicts the next segments. A length of 0
// is unknown.
type guess struct {
	long     uint16         // length of the last long segment that did not end its message
	lastSend uint32         // length of the last Send of more than one segment
	typ      vitcpwire.Type // type of the predicted segments
	sendEnd  uint32         // length of the predicted Send
}

// Predict implements placer.Wire. It predicts the rest of the current RDMA Write or Read Response,
// whose header states the length, and the responses expected next. For a Send it assumes the length
// of the last long Send. The guess is safe, because the predicted memory belongs to the predicted
// message only.
func (x *receiver) Predict(to *placer.Predictions) {
	if x.drops() {
		return
	}
	p := &x.asm.data
	switch response := x.h.Type == vitcpwire.ReadResponse; {
	case x.asm.resp.active && (response || x.Missing() == 0), response && !p.active:
		x.predictReads(to)
	case !p.active || x.in.drop:
	case p.typ == vitcpwire.Write: // at most the range that was checked [VIT-2.2.2.2.2-6] [V-42]
		x.predictRest(to, p.typ, p.offset, x.in.rdma.Length, nil)
	case p.typ == vitcpwire.Send && x.in.d != nil:
		x.sendEnd = x.lastSend
		x.predictRest(to, p.typ, p.offset, x.lastSend, x.in.d)
	}
}

// predictReads predicts the rest of the current Read Response and the next responses.
func (x *receiver) predictReads(to *placer.Predictions) {
	i, at := 0, x.asm.resp.offset
	if !x.asm.resp.active {
		if at = 0; x.Missing() > 0 {
			i = 1 // the oldest Read has all its bytes
		}
	}
	for ; i < x.reads.Len(); i++ {
		d := x.reads.At(i).d
		if at >= d.Length || !x.predictRest(to, vitcpwire.ReadResponse, at, d.Length, d) {
			return
		}
		at = 0
	}
}

// predictRest predicts the bytes from at to end of a message of type t, in the memory of d, or of
// the current RDMA Write if d is nil. It returns true if all bytes are predicted.
func (x *receiver) predictRest(to *placer.Predictions, t vitcpwire.Type, at, end uint32, d *vi.Descriptor) bool {
	x.typ = t
	hl := x.dialect.HeaderLen(t)
	full := cmp.Or(int(x.long), vitcpwire.MaxSegment) - hl
	return to.Segments(int(at), int(end), full, func(at, n int) bool {
		var ref vi.Memory
		if d == nil {
			ref, _ = x.writeRange(uint32(at), n)
		} else {
			ref, _ = x.scatter(d, uint32(at), n)
		}
		last := watched(t, at+n == int(end))
		return to.Add(hl, regmem.Ref(ref), n-last, last)
	})
}

// Predicted implements placer.Wire. If a Send ends earlier than predicted, the prediction was
// wrong: the bytes read after the Send, and their memory, are taken back before the message is
// delivered.
func (x *receiver) Predicted(headers, place []byte, _ int, f *placer.Frame) (payload []byte, ok bool, err error) {
	h, _, err := x.dialect.ParseHeader(headers)
	if err != nil || x.drops() || h.Type != x.typ || x.dialect.HeaderLen(h.Type) != len(headers) {
		return nil, false, nil
	}
	last := watched(h.Type, ends(&h))
	n := len(place) + last
	if int(h.Length) != len(headers)+n ||
		h.Type == vitcpwire.Send && ends(&h) && uint64(h.Offset)+uint64(n) != uint64(x.sendEnd) {
		return nil, false, nil
	}
	if err := x.begin(h, headers[vitcpwire.HeaderLen:], n, last, f); err != nil {
		return nil, false, err
	}
	return nil, true, nil
}
