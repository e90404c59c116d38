package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// farWrites are short segments of RDMA Writes to far memory that have come with one read of the stream and lie
// behind each other. They are judged and placed together, as if they were one: each access
// to far memory is a call, which costs more than the rest of such a segment. Where that is refused
// or fails they are taken one by one, so that each has the end it would have had.
type farWrites struct {
	list []farWrite
	b    []byte // payload of all
}

type farWrite struct {
	head ddp.Tagged
	size int
}

const (
	farEach = 1 << 10  // payload of a segment for which a call of its own counts
	farAll  = 32 << 10 // payload of those that are placed together
)

// postpone keeps a segment to be placed with those that come behind it. What is kept already is placed before a segment
// that is not of these, which is left to the caller: then it is false. The stream may have ended.
func (q *QueuePair) postpone(s *segment) bool {
	f := &q.rx.far
	n := len(f.list)
	if s.op != rdmap.Write || s.size == 0 || s.size > farEach {
		return q.placePostponed()
	}
	if n > 0 {
		first := &f.list[0].head
		if s.tagged.STag != first.STag || s.tagged.TO != first.TO+uint64(len(f.b)) || len(f.b)+s.size > farAll {
			if q.placePostponed() {
				return true
			}
			n = 0
		}
	}
	if n == 0 {
		if m := q.dev.reg.Lookup(s.tagged.STag); m == nil || !m.Far() {
			return false
		}
	}
	f.list = append(f.list, farWrite{s.tagged, s.size})
	f.b = append(f.b, s.payload()...)
	return true
}

// placePostponed places what was kept. It reports whether the stream has ended.
func (q *QueuePair) placePostponed() (ended bool) {
	f := &q.rx.far
	if len(f.list) == 0 {
		return false
	}
	list, b := f.list, f.b
	f.list, f.b = f.list[:0], f.b[:0]
	first := &list[0].head
	ref, out := q.dev.reg.Access(first.STag, first.TO, uint64(len(b)), q.pd.dom, q, regmem.RemoteWrite)
	if out == regmem.OK {
		err := ref.CopyFrom(b)
		ref.Release()
		if err == nil {
			q.rx.n.placed += uint64(len(b))
			return false
		}
	}
	var s segment
	for _, w := range list {
		if q.life.Load().ended() {
			return true
		}
		s = segment{op: rdmap.Write, last: w.head.Last, tagged: w.head, size: w.size, u: append(w.head.Append(s.u[:0]), b[:w.size]...)}
		q.takeOne(&s)
		b = b[w.size:]
	}
	return q.life.Load().ended()
}
