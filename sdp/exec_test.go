package sdp

import "testing"

// The memory of a header is not used again before its Send is known to be
// complete, and there is no more of it than Sends were under way.
func TestHeaderMemory(t *testing.T) {
	const depth = 64
	var s sideSend
	s.init(depth)
	under := map[*byte]uint64{} // by memory: the Send it belongs to
	send := func() {
		t.Helper()
		s.posted++
		h := s.header()
		if len(h) != 0 || cap(h) < 48 {
			t.Fatalf("%d and %d bytes", len(h), cap(h))
		}
		p := &h[:1][0]
		if was := under[p]; was > s.done {
			t.Fatalf("Send %d has the memory of Send %d, complete are %d", s.posted, was, s.done)
		}
		under[p] = s.posted
	}
	for _, way := range []uint64{1, 8, 9, 33, depth, 5} {
		for range 3 * depth {
			send()
			s.done = max(s.done, s.posted-min(s.posted, way-1))
		}
		if n := uint64(len(s.hdrs)); n > depth || n >= 2*way && n > 8 && way > 5 {
			t.Errorf("room for %d with %d under way", n, way)
		}
	}
}
