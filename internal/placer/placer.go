package placer

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
)

// maxDiscard is the largest number of unwanted bytes of a single read.
const maxDiscard = 64 << 10

// A Placer places the frames of a connection. There is no lock, because only the holder of the
// connection's receive role uses the Placer. Set Wire before the first frame.
type Placer struct {
	Wire Wire
	f    Frame
	held regmem.Ref // pin that serves every access to its region during one Receive
	long *long      // nil until a read was planned
}

// A long holds the state of frames bypassing the staging buffer.
type long struct {
	Predictions
	pins    []regmem.Ref // pins of the memory of the current frame, from Plan to Landed
	discard []byte       // memory for bytes that the Wire does not want
}

// Ahead returns the pins of memory of predicted frames; it is empty unless a read is planned.
func (x *Placer) Ahead() []regmem.Ref {
	if x.long == nil {
		return nil
	}
	return x.long.pinned
}

// Open reports whether the current frame is incomplete.
func (x *Placer) Open() bool { return x.f.open }

// Placed returns the number of payload bytes of the current frame placed or dropped so far.
func (x *Placer) Placed() int { return x.f.placed }

// Missing returns the number of payload bytes of the current frame not yet arrived. The next reads
// place the missing bytes directly. Missing returns 0 if no frame is open.
func (x *Placer) Missing() int {
	if !x.f.open {
		return 0
	}
	return x.f.Size - x.f.placed
}

// Receive handles the frames at the front of p, as [frameio.Protocol] requires: it returns the
// number of consumed bytes, and the number of payload bytes missing from the last frame. Receive
// releases all pins before returning.
func (x *Placer) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	w := x.Wire
	for n < len(p) && err == nil {
		if x.f.open {
			k := x.f.Trailer
			if len(p)-n < k {
				break
			}
			n += k
			err = x.end(p[n-k : n])
			continue
		}
		k, payload, ok, failed := w.Next(p[n:], mayPlan, &x.f)
		if n += k; failed != nil || k == 0 {
			err = failed
			break
		}
		if !ok {
			continue
		}
		if len(payload) > 0 {
			x.Place(payload)
		}
		if x.f.open = x.f.placed < x.f.Size || x.f.Trailer > 0; !x.f.open {
			err = w.End(nil)
		}
	}
	x.LetGo()
	return n, x.Missing(), err
}

// Take begins frame f outside of Receive and places payload, the first bytes of f. Take also ends f
// if the payload is complete. No other frame may be open.
func (x *Placer) Take(f Frame, payload []byte) error {
	x.f = f
	if len(payload) > 0 {
		x.Place(payload)
	}
	if x.f.open = x.f.placed < x.f.Size || x.f.Trailer > 0; x.f.open {
		return nil
	}
	return x.Wire.End(nil)
}

// end ends the open frame, whose trailer has arrived.
func (x *Placer) end(trailer []byte) error {
	x.f.open = false
	return x.Wire.End(trailer)
}

// Place copies p, the next payload bytes of the current frame, to the memory named by the Wire.
// Bytes unwanted by the Wire are dropped.
func (x *Placer) Place(p []byte) {
	if at := x.f.At; at != nil {
		if at = at[x.f.placed:]; x.f.Watched {
			regmem.CopyLast(at, p, false) // [VIA-4.2-5]
		} else {
			copy(at, p)
		}
		x.f.placed += len(p)
		return
	}
	for len(p) > 0 {
		ref := x.Wire.Target(x.held, x.f.placed, len(p))
		n := ref.Len()
		if n == 0 { // the Wire does not want these bytes
			n = len(p)
		} else if err := x.copy(ref, p[:n]); err != nil {
			x.Wire.Lost(err)
		}
		if ref.Pins() && !x.Hold(ref) {
			ref.Release()
		}
		p = p[n:]
		x.f.placed += n
	}
}

// copy copies p to ref. It does nothing if p is the memory of ref, because a read has then placed
// p.
func (x *Placer) copy(ref regmem.Ref, p []byte) error {
	switch {
	case !ref.Far() && &ref.B()[0] == &p[0]:
		return nil
	case x.f.Watched:
		return ref.CopyLastFrom(p) // [VIA-4.2-5]
	}
	return ref.CopyFrom(p)
}

// Hold keeps the pin of ref until the current Receive or Landed ends, and releases the previously
// held pin. Successive messages usually use the same region, so a single pin serves many messages.
// Hold returns false and does nothing for far memory and for guarded memory.
func (x *Placer) Hold(ref regmem.Ref) bool {
	if !ref.Pins() || ref.Guarded() || ref.Far() {
		return false
	}
	x.held.Release()
	x.held = ref
	return true
}

// Held returns the pin kept by Hold; the zero value holds none.
func (x *Placer) Held() regmem.Ref { return x.held }

// LetGo releases the held pin, if there is one.
func (x *Placer) LetGo() {
	x.f.At = nil
	if x.held.Pins() {
		x.held.Release()
		x.held = regmem.Ref{}
	}
}

// Drop forgets the current frame and releases the pins, because the stream has ended.
func (x *Placer) Drop() {
	x.f.open = false
	if x.long != nil {
		x.long.unpin()
	}
}

// unpin releases the pins of the current frame.
func (m *long) unpin() {
	m.pins, m.discard = regmem.ReleaseAll(m.pins), nil
}

// Plan adds to p the memory for the missing bytes of the current frame and for predicted frames.
func (x *Placer) Plan(p *frameio.Plan) {
	if x.long == nil {
		x.long = new(long)
	}
	if x.Missing() > 0 && !x.planRest(p) {
		return
	}
	if p.Room() {
		x.predict(p)
	}
}

// planRest plans the missing bytes of the current frame. If the Wire does not want the missing
// bytes, planRest plans to read into the discard buffer and returns false.
func (x *Placer) planRest(p *frameio.Plan) bool {
	m := x.long
	for at := x.f.placed; at < x.f.Size; {
		ref := x.Wire.Target(regmem.Ref{}, at, x.f.Size-at)
		if ref.Len() == 0 {
			m.unpin()
			m.discard = make([]byte, min(x.Missing(), maxDiscard))
			p.Guarded = false
			p.Frame = append(p.Frame[:0], m.discard)
			return false
		}
		m.pins = append(m.pins, ref)
		p.Guarded = p.Guarded || ref.Guarded()
		p.Frame = append(p.Frame, ref.B())
		at += ref.Len()
	}
	return true
}

// Landed handles the bytes placed by a read with the last Plan, as [frameio.Protocol] requires:
// frame bytes of the current frame, then after bytes from the first predicted header on. taken is
// the number of consumed after bytes. Landed releases all pins before returning.
func (x *Placer) Landed(p *frameio.Plan, frame, after int) (taken, missing int, err error) {
	if x.Missing() > 0 {
		x.long.unpin()
		x.f.placed += frame
		if x.f.placed == x.f.Size && x.f.Trailer == 0 {
			err = x.end(nil)
		}
	}
	for _, f := range p.Predicted {
		if err != nil || after <= len(f.Header) {
			break
		}
		var k int
		k, err = x.takePredicted(f, after)
		taken += k
		if after -= k; k <= len(f.Header) {
			break
		}
	}
	x.long.release()
	x.LetGo()
	return taken, x.Missing(), err
}
