package placer

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
)

// Predictions are the predicted frames of a read. A Wire adds frames in method Predict; the methods
// of Predictions may be called only there.
type Predictions struct {
	Max int // largest sum of predicted bytes; a Wire may lower it

	plan  *frameio.Plan
	first int          // missing bytes of the current payload
	gap   int          // trailer bytes of the last frame, after its payload
	size  int          // stream bytes of the predicted frames, without the last gap
	pins  []regmem.Ref // pins of the memory of the whole read, from Plan to Landed
	own   int          // number of pins of the current frame, the first ones
}

func (a *Predictions) release() { a.pins, a.own = regmem.ReleaseAll(a.pins), 0 }

// Len returns the number of predicted frames.
func (a *Predictions) Len() int { return len(a.plan.Predicted) }

// Next returns the number of stream bytes that precede the headers of the next frame to predict,
// counted from the first missing byte of the current frame.
func (a *Predictions) Next() int { return a.first + a.size + a.gap }

// Try runs f. If f returns false, Try removes the frames added by f.
func (a *Predictions) Try(f func() bool) bool {
	n, gap, size := a.Len(), a.gap, a.size
	ok := f()
	if !ok {
		a.plan.Predicted, a.gap, a.size = a.plan.Predicted[:n], gap, size
	}
	return ok
}

// Segments predicts the bytes from at to end of a message, in segments of full bytes. add predicts
// the segment with n bytes at offset at. Segments returns false unless add has added them all.
func (a *Predictions) Segments(at, end, full int, add func(at, n int) bool) bool {
	for at < end {
		n := min(full, end-at)
		if !add(at, n) {
			return false
		}
		at += n
	}
	return at == end
}

// Add predicts a frame with header bytes of headers, n bytes of payload at the beginning of place,
// and trailer bytes after the payload. The pin of place is kept until Landed; memory without a pin
// must be lent until then. If there is no room for the frame, or a read may not write to n bytes of
// place at any time, Add releases the pin and returns false.
func (a *Predictions) Add(header int, place regmem.Ref, n, trailer int) bool {
	if n <= 0 || place.Len() < n || place.Far() || place.Guarded() && !place.FaultBreaks() ||
		!a.plan.Room() || a.size+n > a.Max {
		place.Release()
		return false
	}
	a.pins = append(a.pins, place)
	a.plan.Guarded = a.plan.Guarded || place.Guarded()
	a.plan.Predict(a.gap+header, place.B()[:n:n])
	a.size += a.gap + header + n
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
	x.Place(payload)
	payload = f.Place[:min(n-len(f.Header), len(f.Place))]
	return len(f.Header) + len(payload), x.begin(payload)
}
