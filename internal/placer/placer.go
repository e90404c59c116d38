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
	Wire  Wire
	f     Frame
	held  regmem.Ref   // pin that serves every access to its region during one Receive
	ahead *Predictions // nil until a read was planned
}

// Planned returns the pins of the planned read; it is empty unless a read is planned.
func (x *Placer) Planned() []regmem.Ref {
	if x.ahead == nil {
		return nil
	}
	return x.ahead.pins
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
		k, payload, ok, failed := x.Wire.Next(p[n:], mayPlan, &x.f)
		if n += k; failed != nil || k == 0 {
			err = failed
			break
		}
		if ok {
			err = x.begin(payload)
		}
	}
	x.LetGo()
	return n, x.Missing(), err
}

// Take begins frame f outside of Receive and places payload, the first bytes of f. Take also ends f
// if the payload is complete. No other frame may be open.
func (x *Placer) Take(f Frame, payload []byte) error {
	x.f = f
	return x.begin(payload)
}

// begin places payload, the first bytes of the current frame.
func (x *Placer) begin(payload []byte) error {
	x.Place(payload)
	return x.settle()
}

// settle ends the current frame, unless more bytes must arrive.
func (x *Placer) settle() error {
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
// Place does not copy bytes that a read has put there, and drops bytes unwanted by the Wire.
func (x *Placer) Place(p []byte) {
	if x.f.At != nil && len(p) > 0 {
		switch at := x.f.At[x.f.placed:]; {
		case &at[0] == &p[0]:
		case x.f.Watched:
			regmem.CopyLast(at, p, false) // [VIA-4.2-5]
		default:
			copy(at, p)
		}
		x.f.placed += len(p)
		return
	}
	for len(p) > 0 {
		ref := x.Wire.Target(x.f.placed, len(p))
		n := ref.Len()
		var err error
		switch {
		case n == 0: // the Wire does not want these bytes
			n = len(p)
		case !ref.Far() && &ref.B()[0] == &p[0]:
		case x.f.Watched:
			err = ref.CopyLastFrom(p[:n]) // [VIA-4.2-5]
		default:
			err = ref.CopyFrom(p[:n])
		}
		if err != nil {
			x.Wire.Lost(err)
		}
		x.Hold(ref)
		p = p[n:]
		x.f.placed += n
	}
}

// Hold keeps the pin of ref until the current Receive or Landed ends, and returns the bytes.
// Successive messages usually use the same region, so a single pin serves many messages: the
// previously held pin is released. Far memory and guarded memory are not held: Hold then releases
// the pin of ref and returns nil.
func (x *Placer) Hold(ref regmem.Ref) []byte {
	if ref.Guarded() || ref.Far() {
		ref.Release()
		return nil
	}
	if ref.Pins() {
		x.held.Release()
		x.held = ref
	}
	return ref.B()
}

// Held returns the pin kept by Hold; the zero value holds none.
func (x *Placer) Held() regmem.Ref { return x.held }

// LetGo releases the held pin, if there is one.
func (x *Placer) LetGo() {
	x.held.Release()
	x.held, x.f.At = regmem.Ref{}, nil
}

// Drop forgets the current frame, because the stream has ended.
func (x *Placer) Drop() { x.f.open = false }

// Plan adds to p the memory for the missing bytes of the current frame and for predicted frames.
func (x *Placer) Plan(p *frameio.Plan) {
	if x.ahead == nil {
		x.ahead = new(Predictions)
	}
	a := x.ahead
	if (x.Missing() == 0 || x.planRest(p)) && p.Room() {
		a.plan, a.first, a.gap, a.size, a.Max = p, x.Missing(), 0, 0, frameio.MaxAhead
		if x.f.open {
			a.gap = x.f.Trailer
		}
		x.Wire.Predict(a)
		a.plan = nil
	}
	if len(p.Frame) == 0 && len(p.Predicted) == 0 { // Landed will not be called
		a.release()
	}
}

// planRest plans the missing bytes of the current frame. If the Wire does not want the missing
// bytes, planRest plans to read and discard them, and returns false.
func (x *Placer) planRest(p *frameio.Plan) bool {
	for at := x.f.placed; at < x.f.Size; {
		ref := x.Wire.Target(at, x.f.Size-at)
		if ref.Len() == 0 {
			x.ahead.release()
			p.Guarded = false
			p.Frame = append(p.Frame[:0], make([]byte, min(x.Missing(), maxDiscard)))
			return false
		}
		x.ahead.pins = append(x.ahead.pins, ref)
		x.ahead.own++
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
		// A later frame may invalidate the memory, and would wait for these pins for ever.
		regmem.ReleaseAll(x.ahead.pins[:x.ahead.own])
		x.f.placed += frame
		err = x.settle()
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
	x.ahead.release()
	x.LetGo()
	return taken, x.Missing(), err
}
