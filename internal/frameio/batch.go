package frameio

import (
	"sync"

	"viaduct/internal/regmem"
	"viaduct/internal/sock"
)

const (
	// CopyLimit is the payload length in bytes up to which copying into the
	// send buffer is cheaper than one more vector entry.
	CopyLimit = 1024

	// MaxHeader is the largest number of bytes that Header returns: a short frame.
	MaxHeader = CopyLimit + 64

	// slabSize holds the headers, trailers and short payloads of one batch.
	slabSize = 64 << 10

	// maxVecs keeps a batch below the kernel's 1024 vector entries.
	maxVecs = 512

	// batchBytes is the size at which a batch ends: more bytes per call gain nothing, and would
	// only delay the peer's work on the first frames.
	batchBytes = 512 << 10

	// aheadBytes is the limit if the peer predicts frames and reads many of them at once: one MiB
	// of payload and its headers are written in one call.
	aheadBytes = 1100 << 10

	// frameSlack is the free space in the slab that Full requires for another frame: a frame's
	// headers, a short payload and a trailer.
	frameSlack = MaxHeader + 512 + trailerSlack

	// trailerSlack is not available for payload, so that a frame of many short pieces has room for
	// its trailer.
	trailerSlack = 64
)

// A Batch gathers frames for one write. It is filled in [Protocol.Fill]: for
// each frame, Header, then Data for each piece of payload, then Header again
// for a trailer.
type Batch struct {
	slab  []byte       // copied bytes; capacity never changes, so that vecs stay valid
	start int          // offset of the slab bytes that are not yet in vecs
	vecs  [][]byte     // bytes to write, in order
	pins  []regmem.Ref // memory referenced by vecs
	last  regmem.Ref   // the pin taken last, one of pins
	bytes int          // total length

	more    bool              // Fill has left something for the next batch
	guarded bool              // some of vecs may fault
	gone    bool              // one of them has: the stream cannot continue
	to      *sock.Socket      // socket that was given some of vecs, which it may still use
	scratch [maxVecs]sock.Vec // for the system call
	short   [CopyLimit]byte   // see Short
}

var batches = sync.Pool{New: func() any {
	return &Batch{slab: make([]byte, 0, slabSize), vecs: make([][]byte, 0, maxVecs)}
}}

// Full reports that no further frame should be added. Fill is called again after it has stopped for
// a full batch.
func (b *Batch) Full() bool { return b.FullFor(false) }

// FullFor is Full; ahead says that the next frame is the rest of a message whose
// end the peer knows.
func (b *Batch) FullFor(ahead bool) bool {
	limit := batchBytes
	if ahead {
		limit = aheadBytes
	}
	full := b.bytes >= limit || len(b.vecs) > maxVecs-4 || cap(b.slab)-len(b.slab) < frameSlack
	b.more = b.more || full
	return full
}

// LeaveMore records that Fill left frames for the next batch although this one is not full.
func (b *Batch) LeaveMore() { b.more = true }

// Len returns how many bytes the batch holds.
func (b *Batch) Len() int { return b.bytes }

// Header returns n bytes, n at most MaxHeader, to be filled with a header, a
// trailer, or a short frame as a whole, before the next call. Their contents are undefined.
func (b *Batch) Header(n int) []byte {
	b.bytes += n
	at := len(b.slab)
	b.slab = b.slab[:at+n]
	return b.slab[at : at+n : at+n]
}

// Data appends the bytes of ref, which are copied now if they are short and referenced otherwise.
// The batch takes over the pin. A frame may have at most [Batch.Pieces] pieces.
//
// The error is regmem.ErrFault if guarded memory was unmapped.
func (b *Batch) Data(ref regmem.Ref) error {
	if b.Copies(ref.Len()) {
		h := b.Header(ref.Len())
		err := regmem.Copy(h, ref.B(), ref.Guarded())
		ref.Release()
		return err
	}
	b.close()
	b.vecs = append(b.vecs, ref.B())
	b.Pin(ref)
	b.bytes += ref.Len()
	return nil
}

// Copies reports whether Data would copy n bytes.
func (b *Batch) Copies(n int) bool {
	return n <= CopyLimit && n <= cap(b.slab)-len(b.slab)-trailerSlack
}

// Short returns scratch memory of CopyLimit bytes. Give it to Data before the next call of Short:
// Data copies it.
func (b *Batch) Short() []byte { return b.short[:] }

// Pin takes over the pin of ref until the batch is written. A protocol that sends many pieces of
// one region uses [Batch.Pinned] for all but the first, which saves a pin for each.
func (b *Batch) Pin(ref regmem.Ref) {
	if !ref.Pins() {
		return
	}
	b.pins = append(b.pins, ref)
	b.guarded = b.guarded || ref.Guarded()
	b.last = ref
}

// Pinned returns the pin that the batch took last, if it pins r and the memory of r cannot fault.
// Pieces from [regmem.Ref.Access] on that pin may be given to Data without another pin.
func (b *Batch) Pinned(r *regmem.Region) (ref regmem.Ref, ok bool) {
	return b.last, regmem.RegionOf(b.last) == r && r != nil && !b.last.Guarded()
}

// Bytes is Data for memory that needs no pin and stays untouched until Sent.
func (b *Batch) Bytes(p []byte) {
	b.Data(regmem.Of(p))
}

// Pieces returns how many more pieces of payload fit.
func (b *Batch) Pieces() int { return (maxVecs - 2 - len(b.vecs)) / 2 }

// close moves the open end of the slab to the vectors.
func (b *Batch) close() {
	if b.start < len(b.slab) {
		b.vecs = append(b.vecs, b.slab[b.start:len(b.slab):len(b.slab)])
		b.start = len(b.slab)
	}
}

// written drops n bytes from the front and reports whether the batch is empty.
func (b *Batch) written(n int) bool {
	b.bytes -= n
	i := 0
	for i < len(b.vecs) && n >= len(b.vecs[i]) {
		n -= len(b.vecs[i])
		i++
	}
	if i == len(b.vecs) {
		return true
	}
	b.vecs[i] = b.vecs[i][n:]
	if i > 0 {
		b.vecs = b.vecs[:copy(b.vecs, b.vecs[i:])]
	}
	return false
}

func (b *Batch) release() {
	b.pins = regmem.ReleaseAll(b.pins)
	b.last = regmem.Ref{}
}

// detach makes the bytes that a socket holds, but has not counted as written, independent of the
// batch.
func (b *Batch) detach() {
	if b.to != nil && b.bytes > 0 {
		b.to.Detach()
	}
	b.to = nil
}

// reset empties the batch for the next Fill.
func (b *Batch) reset() {
	b.detach()
	b.release()
	clear(b.vecs[:cap(b.vecs)][:len(b.vecs)])
	b.vecs = b.vecs[:0]
	b.slab = b.slab[:0]
	b.start, b.bytes, b.more, b.guarded, b.gone = 0, 0, false, false, false
}

// own copies the referenced bytes that are not written yet and releases the pins.
func (b *Batch) own() {
	b.detach()
	for i, v := range b.vecs {
		if len(v) == 0 || b.inSlab(v) {
			continue
		}
		c := make([]byte, len(v))
		if regmem.Copy(c, v, b.guarded) != nil {
			b.gone = true // the write would also have found this
		}
		b.vecs[i] = c
	}
	b.release()
}

func (b *Batch) inSlab(v []byte) bool {
	s := regmem.Address(b.slab)
	a := regmem.Address(v)
	return a >= s && a < s+slabSize
}
