package iwarp

import (
	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// farWrites are adjacent segments of RDMA Writes to far memory, outside of this address space (see
// [regmem.Space]), received by a single read of the stream. All segments are short, except that the first
// may be a long segment of the same message. The segments are checked and placed together, because
// each access to far memory is a system call, and costs more than all other work for a short
// segment. If the access is refused or fails, the segments are placed separately, so that each has
// the same outcome as alone.
type farWrites struct {
	list  []farWrite
	b     []byte // payload of all segments in list; in room, or in frame after a long segment
	room  []byte // memory for the payload of short segments
	frame []byte // the current FPDU and all bytes read after it; nil if no FPDU was set by taking
}

type farWrite struct {
	head ddp.Tagged
	size int
}

const (
	farEach = 1 << 10  // largest payload of a short segment
	farAll  = 32 << 10 // largest sum of short payloads that are placed together
)

// taking sets frame to p, which begins with the next FPDU to be handled; p is nil if there is none.
// With a nil f, taking does nothing, because the device then has no far region.
func (f *farWrites) taking(p []byte) {
	if f != nil {
		f.frame = p[:len(p):len(p)]
	}
}

// postpone keeps s, to place s together with the following segments, and returns true. If s cannot
// be kept, postpone places the kept segments and returns false; the caller then places s. postpone
// also returns true if the stream has ended meanwhile, because s is then dropped. r.far is set.
func (r *receiver) postpone(s *segment) bool {
	f := r.far
	if s.op != rdmap.Write || s.size == 0 {
		return r.placePostponed()
	}
	if f.follows(s) {
		// The memory after the payload of a long segment is free: only the CRC of the long segment
		// and the headers of handled segments were stored there.
		f.b = append(f.b, s.payload()...)
		if f.list[0].size <= farEach {
			f.room = f.b
		}
		f.list = append(f.list, farWrite{s.tagged, s.size})
		return true
	}
	if r.placePostponed() {
		return true
	}
	long := s.size > farEach
	if long && (s.last || f.frame == nil) {
		return false
	}
	if m := r.mem.dev.reg.Lookup(s.tagged.STag); m == nil || !m.Far() {
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

// follows reports whether s can be placed together with the kept segments.
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

// placePostponed places the kept segments and reports whether the stream has ended. It returns
// false if no segment is kept.
func (r *receiver) placePostponed() (ended bool) {
	f := r.far
	if f == nil || len(f.list) == 0 {
		return false
	}
	list, b := f.list, f.b
	f.list, f.b = f.list[:0], nil
	first := &list[0].head
	ref, out := r.mem.access(first.STag, first.TO, uint64(len(b)), regmem.RemoteWrite)
	if out == regmem.OK {
		err := ref.CopyFrom(b)
		ref.Release()
		if err == nil {
			r.stats.placed.Add(uint64(len(b)))
			return false
		}
	}
	was := r.seg // the current segment, of which nothing has been placed
	for _, w := range list {
		if r.life.Load().ended() {
			break
		}
		r.seg = segment{op: rdmap.Write, last: w.head.Last, tagged: w.head, size: w.size,
			u: append(w.head.Append(nil), b[:w.size]...)}
		var f placer.Frame
		if payload, ok := r.judge(&r.seg, &f); ok {
			r.Take(f, payload)
		}
		b = b[w.size:]
	}
	r.seg = was
	return r.life.Load().ended()
}
