package placer

import "viaduct/internal/regmem"

// A Wire is the part of a protocol that interprets frames. Only the holder of the connection's
// receive role calls the methods.
type Wire interface {
	// Next checks the frame at the front of p before any payload is placed, and sets f. If early is
	// true, Next may accept a long frame whose end has not arrived. n is the number of consumed
	// bytes of p, and payload is the part of the consumed bytes to place. n is 0 if more of the
	// frame must arrive, or if Next postpones the frame. ok is false if Next has handled the frame
	// completely: the Placer then neither places nor ends the frame. An error other than
	// frameio.ErrEnough ends the connection.
	Next(p []byte, early bool, f *Frame) (n int, payload []byte, ok bool, err error)

	// Predicted does the work of Next for a predicted frame. The payload was read to place, as far
	// as it has arrived. arrived is the number of arrived bytes, counted from the start of headers.
	// If another frame arrived, Predicted returns false for ok and changes nothing.
	Predicted(headers, place []byte, arrived int, f *Frame) (payload []byte, ok bool, err error)

	// Target pins and returns the memory for the payload from offset off on, at most n bytes.
	// Target may return fewer bytes, up to the end of the piece of memory that contains off. If
	// Target returns empty memory, the Placer drops the bytes. If the pin of Placer.Held is of the
	// same region, the result needs no separate pin.
	Target(off, n int) regmem.Ref

	// Lost reports that a copy to memory failed, because the memory faulted.
	Lost(err error)

	// End is called once for each frame, after the payload was placed or dropped. len(trailer) is
	// Frame.Trailer.
	End(trailer []byte) error

	// Predict adds the frames that will probably follow the current or last frame.
	Predict(to *Predictions)
}

// A Frame is the frame being placed, or the last frame. A Wire calls Begin for each frame.
type Frame struct {
	Size    int    // bytes of payload to place, whether they have arrived or not
	Trailer int    // bytes after the payload that End needs, and that have not arrived
	At      []byte // memory of the whole payload, or nil; see Begin
	Watched bool   // a program may watch the last bytes, so they must become visible after all others

	open   bool // bytes of the payload or the trailer are missing
	placed int  // bytes of payload that were placed or dropped
}

// Begin begins a frame with size bytes of payload to place. trailer is the number of missing bytes
// after the payload that End needs. at is the memory of the whole payload if already known to the
// Wire and covered by the held pin; otherwise at is nil.
func (f *Frame) Begin(size, trailer int, at []byte) {
	f.Size, f.Trailer, f.At, f.Watched, f.placed = size, trailer, at, false, 0
}
