package placer

import "viaduct/internal/regmem"

// A Wire is the part of a protocol that interprets its frames. Its methods are called in the
// receive role.
type Wire interface {
	// Next checks the frame at the front of p before any of its payload is placed, and sets f. If
	// early is set, it may take a long frame whose end has not arrived. It returns the number of
	// bytes of p that it took, and the payload in them. n is 0 if more of the frame must arrive, or
	// if no frame is to be taken now. ok is false if Next has handled the frame completely: the
	// Placer then neither places nor ends it. An error other than frameio.ErrEnough ends the
	// connection.
	Next(p []byte, early bool, f *Frame) (n int, payload []byte, ok bool, err error)

	// Predicted is Next for a predicted frame. headers are its headers, and its payload was read to
	// place as far as it has arrived. come is the number of arrived bytes, counted from the
	// headers. If another frame arrived, ok is false and nothing is changed.
	Predicted(headers, place []byte, come int, f *Frame) (payload []byte, ok bool, err error)

	// Target pins the memory of the payload from offset off on: the first piece, n bytes at most.
	// If it returns empty memory, the bytes are dropped. Memory in the region that held pins has no
	// pin of its own.
	Target(held regmem.Ref, off, n int) regmem.Ref

	// Lost reports that memory faulted when bytes were copied to it.
	Lost(err error)

	// End is called once for each frame, after its payload was placed or dropped. trailer has
	// Frame.Trailer bytes.
	End(trailer []byte) error

	// Predict adds the frames that will probably follow the current or last one.
	Predict(to *Predictions)
}

// A Frame is the frame being placed, or the last one. A Wire calls Begin for each.
type Frame struct {
	Size    int    // of the whole payload to place
	Trailer int    // bytes after the payload that End needs, and that have not arrived
	At      []byte // see Begin
	Watched bool   // a program may watch the last bytes: they become visible after all others

	open   bool // bytes are missing, of the payload or else of the trailer
	placed int  // bytes of payload that were placed or dropped
}

// Begin begins a frame with size bytes of payload to place, followed by trailer bytes that End
// needs and that have not arrived. at is the memory of the whole payload, if the Wire knows it
// already and the held pin covers it.
func (f *Frame) Begin(size, trailer int, at []byte) {
	f.Size, f.Trailer, f.At, f.Watched, f.placed = size, trailer, at, false, 0
}
