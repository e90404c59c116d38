package vitcp

import (
	"sync"

	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A batchWork is the work that depends on the current batch: what completes once the kernel has the
// batch, and what may be reused.
type batchWork struct {
	done []run // descriptors that complete when the kernel has the batch

	// held is the last pin the current Fill gave to the batch. Further bytes of the same region
	// need no further pin.
	held vi.Memory

	copied []*copiedSegment // copies of memory that may fault, made for the batch
}

// A run is a range of sequence numbers of send descriptors without an RDMA Read.
type run struct{ first, end uint64 }

// completes records that descriptor seq completes when the kernel has the batch.
func (w *batchWork) completes(seq uint64) {
	if n := len(w.done); n > 0 && w.done[n-1].end == seq {
		w.done[n-1].end++
		return
	}
	w.done = append(w.done, run{seq, seq + 1})
}

// put appends pinned bytes to the batch; the batch takes the pin over. A pin of unguarded memory
// stays with the batch even if the bytes are copied at once, because the pin also serves further
// bytes of the same region.
func (w *batchWork) put(b *frameio.Batch, ref regmem.Ref) {
	if ref.Pins() && !ref.Guarded() {
		b.Pin(ref)
		w.held = vi.Memory(ref)
		ref = ref.Unpinned()
	}
	b.Data(ref) // fails only for short guarded memory, and steady leaves none
}

// steady returns the pinned memory of ref in a form that cannot fault. Memory that may fault is
// copied before the header announces the bytes. Otherwise a fault in the write would leave a part
// of the segment sent, and the stream could not continue. If the consumer has set FaultBreaks, the
// memory is not copied, and only memory with an earlier fault is an error here. [V-30]
func (t *sender) steady(b *frameio.Batch, ref regmem.Ref) (regmem.Ref, vi.Status) {
	if !ref.Guarded() {
		return ref, 0
	}
	if ref.Len() > frameio.CopyLimit && ref.FaultBreaks() && t.level != unreliable && t.c.InPlace() {
		if ref.Probe() != nil {
			ref.Release()
			return regmem.Ref{}, vi.StatusProtectionError
		}
		return ref, 0
	}
	return t.batch.copy(b, ref)
}

// A copiedSegment holds the payload of a segment whose source memory may fault.
type copiedSegment [vitcpwire.MaxSegment]byte

var copiedSegments = sync.Pool{New: func() any { return new(copiedSegment) }}

// copy copies the memory of ref, into b if there is room, and releases the pin.
func (w *batchWork) copy(b *frameio.Batch, ref regmem.Ref) (regmem.Ref, vi.Status) {
	defer ref.Release()
	n := ref.Len()
	p := b.Short()
	if !b.Copies(n) {
		c := copiedSegments.Get().(*copiedSegment)
		w.copied = append(w.copied, c)
		p = c[:]
	}
	p = p[:n]
	if ref.CopyTo(p) != nil {
		return regmem.Ref{}, vi.StatusProtectionError
	}
	return regmem.Of(p), 0
}

// uncopied releases the copies made for a sent batch.
func (w *batchWork) uncopied() {
	for i, c := range w.copied {
		copiedSegments.Put(c)
		w.copied[i] = nil
	}
	w.copied = w.copied[:0]
}
