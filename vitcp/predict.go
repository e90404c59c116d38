package vitcp

import (
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
func (w *wire) Predict(to *placer.Predictions) {
	x := (*receiver)(w)
	if x.deaf || !x.life.Load().running() {
		return
	}
	p := &x.asm.data
	switch response := x.h.Type == vitcpwire.ReadResponse; {
	case x.asm.resp.active && (response || x.Missing() == 0), response && !p.active:
		x.predictReads(to)
	case !p.active || x.in.drop:
	case p.typ == vitcpwire.Write: // at most the range that was checked [VIT-2.2.2.2.2-6] [V-42]
		m := &x.in.rdma
		x.predictRest(to, p.typ, p.offset, m.Length, func(at uint32, n int) vi.Memory {
			ref, _ := x.ep.Target(vi.Memory{}, vi.MemHandle(m.Handle), m.Address+uint64(at), uint64(n), true)
			return ref
		})
	case p.typ == vitcpwire.Send && x.in.d != nil:
		x.sendEnd = x.lastSend
		x.predictRest(to, p.typ, p.offset, x.lastSend, func(at uint32, n int) vi.Memory {
			ref, _ := x.scatter(vi.Memory{}, x.in.d, at, n)
			return ref
		})
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
		if at >= d.Length || !x.predictRest(to, vitcpwire.ReadResponse, at, d.Length, func(at uint32, n int) vi.Memory {
			ref, _ := x.scatter(vi.Memory{}, d, at, n)
			return ref
		}) {
			return
		}
		at = 0
	}
}

// predictRest predicts the bytes from at to end of a message of type t, in memory from pin. It
// returns true if all bytes are predicted.
func (x *receiver) predictRest(to *placer.Predictions, t vitcpwire.Type, at, end uint32, pin func(at uint32, n int) vi.Memory) bool {
	x.typ = t
	hl := x.dialect.HeaderLen(t)
	full := vitcpwire.MaxSegment - hl
	if x.long > 0 {
		full = int(x.long) - hl
	}
	for at < end && to.Room() {
		n := min(int(end-at), full)
		b := to.Pin(regmem.Ref(pin(at, n)), n)
		last := 0
		if t == vitcpwire.Write && int(end-at) == n {
			last = watchedLen
		}
		if len(b) <= last || !to.Add(hl, b[:n-last], last) {
			break
		}
		at += uint32(n)
	}
	return at >= end
}

// Predicted implements placer.Wire. If a Send ends earlier than predicted, the prediction was
// wrong: the bytes read after the Send, and their memory, are taken back before the message is
// delivered.
func (w *wire) Predicted(headers, place []byte, _ int, f *placer.Frame) (payload []byte, ok bool, err error) {
	x := (*receiver)(w)
	h, _, err := x.dialect.ParseHeader(headers)
	if err != nil || x.deaf || !x.life.Load().running() || h.Type != x.typ ||
		x.dialect.HeaderLen(h.Type) != len(headers) {
		return nil, false, nil
	}
	last := watched(&h)
	n := len(place) + last
	if int(h.Length) != len(headers)+n {
		return nil, false, nil
	}
	if h.Type == vitcpwire.Send && h.Flags&vitcpwire.EndOfMessage != 0 &&
		uint64(h.Offset)+uint64(n) != uint64(x.sendEnd) {
		return nil, false, nil
	}
	f.Begin(len(place), last, nil)
	f.Watched = h.Type == vitcpwire.Write
	if err := x.begin(h, headers[vitcpwire.HeaderLen:], n); err != nil {
		return nil, false, err
	}
	return nil, true, nil
}
