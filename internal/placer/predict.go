package placer

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
)

// Predictions are the predicted frames of a read. A Wire adds frames in method Predict; the methods
// of Predictions may be called only there.
type Predictions struct {
	Max    int          // largest sum of predicted bytes; a Wire may lower it
	pinned []regmem.Ref // pins of the memory of predicted frames, from Plan to Landed

	plan  *frameio.Plan
	first int // missing bytes of the current payload
	extent
}

// An extent is the number of stream bytes the predicted frames take.
type extent struct {
	gap  int // number of trailer bytes of the previous frame, after its payload
	size int
}

func (x *Placer) predict(p *frameio.Plan) {
	a := &x.long.Predictions
	a.plan, a.first, a.extent, a.Max = p, x.Missing(), extent{}, frameio.MaxAhead
	if x.f.open {
		a.gap = x.f.Trailer
	}
	x.Wire.Predict(a)
	a.plan = nil
	if len(p.Predicted) == 0 { // without predictions, Landed might not be called
		a.release()
	}
}

func (a *Predictions) release() { a.pinned = regmem.ReleaseAll(a.pinned) }

// Len returns the number of predicted frames.
func (a *Predictions) Len() int { return len(a.plan.Predicted) }

// Next returns the number of stream bytes that precede the headers of the next frame to predict,
// counted from the first missing byte of the current frame.
func (a *Predictions) Next() int { return a.first + a.size + a.gap }

// Try runs f. If f returns false, Try removes the frames added by f.
func (a *Predictions) Try(f func() bool) bool {
	n, before := a.Len(), a.extent
	if f() {
		return true
	}
	a.plan.Predicted, a.extent = a.plan.Predicted[:n], before
	return false
}

// Room reports whether another frame may be predicted.
func (a *Predictions) Room() bool { return a.plan.Room() && a.size < a.Max }

// Pin returns the bytes of ref if ref has n bytes and a read may write to the memory at any time;
// Pin then keeps the pin of ref until Landed. Otherwise Pin releases the pin and returns nil.
func (a *Predictions) Pin(ref regmem.Ref, n int) []byte {
	if ref.Len() != n || ref.Far() || ref.Guarded() && !ref.FaultBreaks() {
		ref.Release()
		return nil
	}
	a.plan.Guarded = a.plan.Guarded || ref.Guarded()
	a.pinned = append(a.pinned, ref)
	return ref.B()
}

// Add predicts a frame with header bytes of headers, the payload memory place, and trailer bytes
// after the payload. place must be pinned or lent until Landed. Add returns false and adds nothing
// if there is no room for the frame.
func (a *Predictions) Add(header int, place []byte, trailer int) bool {
	if len(place) == 0 || !a.plan.Room() || a.size+len(place) > a.Max {
		return false
	}
	a.plan.Predict(a.gap+header, place[:len(place):len(place)])
	a.size += a.gap + header + len(place)
	a.gap = trailer
	return true
}

// takePredicted handles predicted frame f, and the trailer of the frame before f. n bytes have
// arrived from the trailer on. taken is the number of consumed bytes: only the trailer if the
// arrived frame does not match f.
func (x *Placer) takePredicted(f frameio.Prediction, n int) (taken int, err error) {
	if x.f.open {
		if taken = x.f.Trailer; taken >= len(f.Header) {
			return 0, nil
		}
		if err := x.end(f.Header[:taken]); err != nil {
			return taken, err
		}
	}
	payload, ok, err := x.Wire.Predicted(f.Header[taken:], f.Place, n-taken, &x.f)
	if !ok || err != nil {
		return taken, err
	}
	if len(payload) > 0 {
		x.Place(payload)
	}
	payload = f.Place[:min(n-len(f.Header), len(f.Place))]
	x.f.At = nil // otherwise the bytes would be copied onto themselves
	x.Place(payload)
	if x.f.open = x.f.placed < x.f.Size || x.f.Trailer > 0; !x.f.open {
		err = x.Wire.End(nil)
	}
	return len(f.Header) + len(payload), err
}
