package fcvi

import "slices"

// spans records the arrived bytes of a message. Usually the bytes arrive in order: front alone then
// describes the bytes, and beyond is empty.
type spans struct {
	front  uint32 // all bytes before this offset have arrived
	beyond []span // spans after a hole; sorted, disjoint, not adjacent
}

type span struct{ from, to uint32 }

// maxSpans is the maximum number of simultaneous holes in a message.
const maxSpans = 1024

type spanResult uint8

const (
	spanNew  spanResult = iota // the bytes are new, and were added
	spanSeen                   // all or a part of the bytes had arrived before
	spanHole                   // earlier bytes are missing, although the path keeps order
	spanFull                   // the message has too many holes
)

func (s *spans) reset() { s.front, s.beyond = 0, s.beyond[:0] }

// next returns the offset of the first missing byte.
func (s *spans) next() uint32 { return s.front }

// covers reports whether all bytes before offset n have arrived.
func (s *spans) covers(n uint32) bool { return s.front >= n }

// extend adds n bytes at next. It returns false and changes nothing if bytes after a hole have
// arrived.
func (s *spans) extend(n uint32) bool {
	if len(s.beyond) > 0 {
		return false
	}
	s.front += n
	return true
}

// add adds n bytes at off. If n is 0, it changes nothing, and the result shows whether off is the
// next expected offset.
func (s *spans) add(off, n uint32, inOrder bool) spanResult {
	switch {
	case inOrder && off > s.front:
		return spanHole
	case inOrder && off < s.front:
		return spanSeen
	case n == 0:
		return spanNew
	case off < s.front:
		return spanSeen
	}
	end := off + n
	i, _ := slices.BinarySearchFunc(s.beyond, off, func(a span, off uint32) int {
		if a.to <= off {
			return -1
		}
		return 1
	})
	left, right := i > 0 && s.beyond[i-1].to == off, false
	if i < len(s.beyond) {
		if s.beyond[i].from < end {
			return spanSeen
		}
		right = s.beyond[i].from == end
	}
	switch {
	case off == s.front: // i is 0, because a part to the left would lie before the front
		s.front = end
		if right {
			s.front = s.beyond[0].to
			s.beyond = slices.Delete(s.beyond, 0, 1)
		}
	case left && right:
		s.beyond[i-1].to = s.beyond[i].to
		s.beyond = slices.Delete(s.beyond, i, i+1)
	case left:
		s.beyond[i-1].to = end
	case right:
		s.beyond[i].from = off
	case len(s.beyond) >= maxSpans:
		return spanFull
	default:
		s.beyond = slices.Insert(s.beyond, i, span{off, end})
	}
	return spanNew
}
