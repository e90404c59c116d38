package frameio

import (
	"sync"

	"viaduct/internal/regmem"
	"viaduct/internal/sock"
)

const (
	// CopyLimit is the payload length in bytes up to which copying into the send buffer is cheaper
	// than another vector entry.
	CopyLimit = 1024

	// MaxHeader is the largest number of bytes Header returns: a short frame.
	MaxHeader = CopyLimit + 64

	// slabSize is the size in bytes of the memory for headers, trailers and short payloads of a batch.
	slabSize = 64 << 10

	// maxVecs keeps a batch below the kernel's 1024 vector entries.
	maxVecs = 512

	// batchBytes is the size where a batch ends: more bytes per call gain nothing, and would
	// only delay the peer's work on the first frames.
	batchBytes = 512 << 10

	// aheadBytes is the size where a batch ends if the peer predicts frames and reads many at once:
	// a single call writes 1 MiB of payload with the headers.
	aheadBytes = 1100 << 10

	// frameSlack is the free slab space below which a batch is full: room for the headers of another
	// frame, a short payload and a trailer.
	frameSlack = MaxHeader + 512 + trailerSlack

	// trailerSlack is the number of slab bytes that payload may not use, so that a frame of many
	// short pieces has room for the trailer.
	trailerSlack = 64
)

// A Batch gathers frames for one write. [Protocol.Fill] fills it: for each frame, Header, then Data
// for each piece of payload, then Header again for a trailer.
type Batch struct {
	slab  []byte       // copied bytes; the capacity never changes, so that vecs stay valid
	start int          // offset of the slab bytes that are not yet in vecs
	vecs  [][]byte     // bytes to write, in order
	pins  []regmem.Ref // memory referenced by vecs
	last  regmem.Ref   // the last element of pins
	bytes int          // number of bytes not written yet

	more    bool              // Fill has left frames for the next batch
	guarded bool              // some of vecs may fault
	gone    bool              // memory of a vector was unmapped, so the stream cannot continue
	to      *sock.Socket      // the socket of the last write, which may still use some of vecs; nil: none
	scratch [maxVecs]sock.Vec // memory for the system call's arguments
	short   [CopyLimit]byte   // see Short
}

var batches = sync.Pool{New: func() any {
	return &Batch{slab: make([]byte, 0, slabSize), vecs: make([][]byte, 0, maxVecs)}
}}

// Full reports whether Fill should stop adding frames. The Conn calls Fill again after a full
// batch.
func (b *Batch) Full() bool { return b.FullFor(false) }

// FullFor is Full for a given next frame. ahead is true if the frame continues a message whose end
// the peer knows. The limit is higher then, because the peer predicts the frame.
func (b *Batch) FullFor(ahead bool) bool {
	limit := batchBytes
	if ahead {
		limit = aheadBytes
	}
	full := b.bytes >= limit || len(b.vecs) > maxVecs-4 || cap(b.slab)-len(b.slab) < frameSlack
	b.more = b.more || full
	return full
}

// LeaveMore records that Fill left frames for the next batch although the batch is not full.
func (b *Batch) LeaveMore() { b.more = true }

// Len returns the number of bytes in the batch.
func (b *Batch) Len() int { return b.bytes }

// Header appends n bytes with undefined contents to the batch and returns them. n is at most
// MaxHeader. Before the next call of a method, the caller fills the bytes with a header, a trailer
// or a whole short frame.
func (b *Batch) Header(n int) []byte {
	b.bytes += n
	at := len(b.slab)
	b.slab = b.slab[:at+n]
	return b.slab[at : at+n : at+n]
}

// Data appends the bytes of ref: short ones are copied now, others are referenced. The batch takes
// over the pin. A frame may have at most [Batch.Pieces] pieces. The error is regmem.ErrFault if
// guarded memory was unmapped.
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

// Short returns scratch memory of CopyLimit bytes. Before the next call of Short, the caller gives
// the memory to Data for copying.
func (b *Batch) Short() []byte { return b.short[:] }

// Pin takes over the pin of ref until the batch is written. For many pieces of one region, a
// protocol pins the first piece and uses [Batch.Pinned] for the others, to save most of the pins.
func (b *Batch) Pin(ref regmem.Ref) {
	if !ref.Pins() {
		return
	}
	b.pins = append(b.pins, ref)
	b.guarded = b.guarded || ref.Guarded()
	b.last = ref
}

// Pinned returns the last pin of the batch, if it is a pin of r and the memory of r cannot fault.
// Pieces from [regmem.Ref.Access] on the returned pin may be given to Data without another pin.
func (b *Batch) Pinned(r *regmem.Region) (ref regmem.Ref, ok bool) {
	return b.last, regmem.RegionOf(b.last) == r && r != nil && !b.last.Guarded()
}

// Bytes is Data for memory that needs no pin. The memory must not change until Sent.
func (b *Batch) Bytes(p []byte) {
	b.Data(regmem.Of(p))
}

// Pieces returns the number of further pieces of payload that fit into the batch.
func (b *Batch) Pieces() int { return (maxVecs - 2 - len(b.vecs)) / 2 }

// close appends to vecs the bytes at the end of the slab, unless already there.
func (b *Batch) close() {
	if b.start < len(b.slab) {
		b.vecs = append(b.vecs, b.slab[b.start:len(b.slab):len(b.slab)])
		b.start = len(b.slab)
	}
}

// written removes the first n bytes, which were written, and reports whether the batch is empty.
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

// detach makes bytes taken by a socket, but not counted as written, independent of the batch.
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

// own copies the referenced bytes not written yet, and releases the pins. If memory was unmapped,
// own sets gone.
func (b *Batch) own() {
	b.detach()
	for i, v := range b.vecs {
		if len(v) == 0 || b.inSlab(v) {
			continue
		}
		c := make([]byte, len(v))
		if regmem.Copy(c, v, b.guarded) != nil {
			b.gone = true // the write would have failed for the same reason
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
