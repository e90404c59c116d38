package iwarp

import (
	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// farWrites are adjacent segments of RDMA Writes to far memory that arrived with one read of the
// stream. They are short, except that the first may be a long one whose message the short ones
// continue. They are checked and placed together, because each access to far memory is a system
// call, which costs more than the rest of a short segment. If that is refused or fails, they are
// placed one by one, so that each has the outcome that it would have had alone.
type farWrites struct {
	list  []farWrite
	b     []byte // payload of all: in room, or where that of a long one has come
	room  []byte // for short ones
	frame []byte // the FPDU that is being taken, and what was read with it behind; nil if its payload was moved
}

type farWrite struct {
	head ddp.Tagged
	size int
}

const (
	farEach = 1 << 10  // payload of a segment for which a call of its own counts
	farAll  = 32 << 10 // short payload of those that are placed together
)

// taking records that the FPDU at the front of p is being handled. p is nil if there is none.
func (f *farWrites) taking(p []byte) {
	if f != nil {
		f.frame = p[:len(p):len(p)]
	}
}

// postpone keeps a segment, to place it together with the next ones. It returns false for a segment
// that cannot be kept, which the caller places; the kept segments are placed before. The stream may
// have ended then.
func (q *QueuePair) postpone(s *segment) bool {
	f := q.rx.far
	if f == nil { // the first far region has just come to be
		return false
	}
	if s.op != rdmap.Write || s.size == 0 {
		return q.placePostponed()
	}
	if f.follows(s) {
		// The place behind a long one had its CRC and the headers of those that were taken since.
		f.b = append(f.b, s.payload()...)
		if f.list[0].size <= farEach {
			f.room = f.b
		}
		f.list = append(f.list, farWrite{s.tagged, s.size})
		return true
	}
	if q.placePostponed() {
		return true
	}
	long := s.size > farEach
	if long && (s.last || f.frame == nil) {
		return false
	}
	if m := q.dev.reg.Lookup(s.tagged.STag); m == nil || !m.Far() {
		return false
	}
	f.list = append(f.list, farWrite{s.tagged, s.size})
	if long {
		f.b = f.frame[mpa.LengthLen+headerLen(s.op):][:s.size]
	} else {
		f.b = append(f.room[:0], s.payload()...)
		f.room = f.b
	}
	return true
}

// follows reports whether a segment can be placed together with the kept ones.
func (f *farWrites) follows(s *segment) bool {
	if len(f.list) == 0 || s.size > farEach {
		return false
	}
	first := &f.list[0]
	if s.tagged.STag != first.head.STag || s.tagged.TO != first.head.TO+uint64(len(f.b)) {
		return false
	}
	if first.size > farEach {
		return len(f.b)+s.size <= cap(f.b)
	}
	return len(f.b)+s.size <= farAll
}

// placePostponed places the kept segments. It reports whether the stream has ended.
func (q *QueuePair) placePostponed() (ended bool) {
	f := q.rx.far
	if f == nil || len(f.list) == 0 {
		return false
	}
	list, b := f.list, f.b
	f.list, f.b = f.list[:0], nil
	first := &list[0].head
	ref, out := q.dev.reg.Access(first.STag, first.TO, uint64(len(b)), q.pd.dom, q, regmem.RemoteWrite)
	if out == regmem.OK {
		err := ref.CopyFrom(b)
		ref.Release()
		if err == nil {
			q.stats.placed.Add(uint64(len(b)))
			return false
		}
	}
	r := &q.rx
	was := r.seg // of which nothing has been placed
	for _, w := range list {
		if q.life.Load().ended() {
			break
		}
		r.seg = segment{op: rdmap.Write, last: w.head.Last, tagged: w.head, size: w.size, u: append(w.head.Append(nil), b[:w.size]...)}
		var f placer.Frame
		if payload, ok := q.judge(&r.seg, &f); ok {
			r.Take(f, payload)
		}
		b = b[w.size:]
	}
	r.seg = was
	return q.life.Load().ended()
}
