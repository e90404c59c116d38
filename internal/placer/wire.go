package placer

import "viaduct/internal/regmem"

// A Wire is what a protocol knows about its frames. Its methods are called in the receive role.
type Wire interface {
	// Next judges the frame at the front of p before any of its payload is placed, and sets f. A
	// long frame may be taken early, when the rest of it has not come, if early is set. Next returns
	// how many bytes of p it took, which is 0 if more of the frame has to come or no frame is to be
	// taken now, and the payload in them. ok is false for a frame that Next has dealt with: it is
	// neither placed nor ended. An error ends the connection, but for frameio.ErrEnough.
	Next(p []byte, early bool, f *Frame) (n int, payload []byte, ok bool, err error)

	// Predicted is Next for a predicted frame. headers are its headers, and its payload was read to
	// place as far as it has arrived. come bytes have arrived, counted from the headers. ok is
	// false, and nothing is changed, if another frame came.
	Predicted(headers, place []byte, come int, f *Frame) (payload []byte, ok bool, err error)

	// Target pins the memory of the payload from offset off on: the first piece, n bytes at most.
	// It returns empty memory if the bytes are not wanted any more; they are dropped then. What
	// lies in the region that held pins comes without a pin of its own.
	Target(held regmem.Ref, off, n int) regmem.Ref

	// Lost reports that memory faulted when bytes were copied to it.
	Lost(err error)

	// End is called once for each frame when its payload is in place, or was dropped. trailer has
	// Frame.Trailer bytes.
	End(trailer []byte) error

	// Predict adds the frames that will probably follow the current one, or the last one.
	Predict(to *Predictions)
}

// A Frame is the frame being placed, or the last one. A Wire calls Begin for each.
type Frame struct {
	Size    int    // of all payload that is placed
	Trailer int    // bytes behind the payload that End needs, and that have not come
	At      []byte // see Begin
	Watched bool   // a program may watch the last bytes: they become visible after all others

	open   bool // bytes of it are missing: payload, or else its trailer
	placed int  // bytes of payload that are in place, or were dropped
}

// Begin begins a frame with size bytes of payload to place, followed by trailer bytes that End
// needs and that have not arrived. at is the memory of the whole payload, if the Wire knows it
// already and the held pin covers it.
func (f *Frame) Begin(size, trailer int, at []byte) {
	f.Size, f.Trailer, f.At, f.Watched, f.placed = size, trailer, at, false, 0
}
