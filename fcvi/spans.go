package fcvi

import "slices"

// spans are the parts of a message that have arrived, sorted and disjoint.
// Almost always there is one, from the front.
type spans struct {
	s []span
}

type span struct{ from, to uint32 }

// maxSpans bounds the holes a message may have at one time.
const maxSpans = 1024

type spanResult uint8

const (
	spanNew  spanResult = iota // taken
	spanSeen                   // here already, wholly or in part
	spanHole                   // something before it is missing, and order is kept
	spanFull                   // too many holes
)

func (s *spans) reset() { s.s = s.s[:0] }

// next is the first offset that is missing.
func (s *spans) next() uint32 {
	if len(s.s) == 0 || s.s[0].from != 0 {
		return 0
	}
	return s.s[0].to
}

// covers reports whether everything up to n is here.
func (s *spans) covers(n uint32) bool { return s.next() >= n }

// add notes n bytes at off. Without bytes it changes nothing and says whether
// off is where the next are expected.
func (s *spans) add(off, n uint32, inOrder bool) spanResult {
	next := s.next()
	if inOrder {
		switch {
		case off > next:
			return spanHole
		case off < next:
			return spanSeen
		}
	}
	if n == 0 {
		return spanNew
	}
	end := off + n
	if off == next && (len(s.s) < 2 || end <= s.s[1].from && s.s[0].from == 0) {
		switch {
		case len(s.s) > 0 && s.s[0].from == 0:
			s.s[0].to = end
			if len(s.s) > 1 && s.s[1].from == end {
				s.s[0].to = s.s[1].to
				s.s = slices.Delete(s.s, 1, 2)
			}
			return spanNew
		case len(s.s) == 0:
			s.s = append(s.s, span{off, end})
			return spanNew
		}
	}
	i, _ := slices.BinarySearchFunc(s.s, off, func(a span, off uint32) int {
		if a.to <= off {
			return -1
		}
		return 1
	})
	if i < len(s.s) && s.s[i].from < end {
		return spanSeen
	}
	if len(s.s) >= maxSpans {
		return spanFull
	}
	s.s = slices.Insert(s.s, i, span{off, end})
	if i+1 < len(s.s) && s.s[i+1].from == end {
		s.s[i].to = s.s[i+1].to
		s.s = slices.Delete(s.s, i+1, i+2)
	}
	if i > 0 && s.s[i-1].to == off {
		s.s[i-1].to = s.s[i].to
		s.s = slices.Delete(s.s, i, i+1)
	}
	return spanNew
}
