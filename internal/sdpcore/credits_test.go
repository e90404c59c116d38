package sdpcore

import (
	"fmt"
	"hash/maphash"
	"testing"
)

// These types model the credits of two ends. The test tries every order of sending, receiving and
// reading, up to a number of moves.
type (
	creditKind uint8
	creditMsg  struct {
		kind creditKind
		bufs int
		ack  serial
	}
	creditState struct {
		end  [2]credits
		wire [2][8]creditMsg // messages from each end to the other
		n    [2]int
	}
)

const (
	creditEmpty   creditKind = iota // an empty Data message
	creditControl                   // any other message without payload
	creditCancel                    // a cancel, for which the receiver holds MSeqAck [D-33]
	creditPayload
)

func (s creditState) send(i int, k creditKind) creditState {
	c := &s.end[i]
	s.wire[i][s.n[i]] = creditMsg{k, c.announce(), c.ack()}
	s.n[i]++
	c.announced()
	c.next++
	return s
}

func (s creditState) receive(i int) (creditState, error) {
	q := &s.wire[1-i]
	msg := q[0]
	copy(q[:], q[1:])
	q[len(q)-1] = creditMsg{}
	s.n[1-i]--
	c := &s.end[i]
	if !c.received(msg.bufs, msg.ack) {
		return s, fmt.Errorf("MSeqAck %d refused", msg.ack)
	}
	c.expect++
	switch msg.kind {
	case creditPayload:
		c.free--
	case creditEmpty:
		c.empties++
	case creditCancel:
		c.hold, c.holdAt = true, c.expect-2
	}
	if c.free < 0 {
		return s, fmt.Errorf("no buffer for message %d", c.expect-1)
	}
	return s, nil
}

// cancelling reports whether end i has a SrcAvailCancel open. Such an end sends no payload before
// the answer. [SDP-11.2-4]
func (s *creditState) cancelling(i int) bool {
	for _, m := range s.wire[i][:s.n[i]] {
		if m.kind == creditCancel {
			return true
		}
	}
	return s.end[1-i].hold
}

// mayRefresh reports whether updates.step would send an empty Data although no payload waits.
func (c *credits) mayRefresh() bool {
	return c.credit() >= 1 && c.mustRefresh() || c.credit() >= 2 && c.shouldRefresh()
}

// next returns all states that can follow s. If neither end has a message to receive or an empty
// Data to send, each must have two credits, enough for everything except payload.
func (s creditState) next(holds, reads bool, out []creditState) ([]creditState, error) {
	busy := false
	for i := range s.end {
		c := &s.end[i]
		if s.n[1-i] > 0 {
			busy = true
			t, err := s.receive(i)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		}
		if s.n[i] < len(s.wire[i]) {
			if c.mayPayload() && !s.cancelling(i) {
				out = append(out, s.send(i, creditPayload))
			}
			if c.mayControl() {
				out = append(out, s.send(i, creditControl))
				if holds && !s.cancelling(i) && c.next > 0 {
					out = append(out, s.send(i, creditCancel))
				}
			}
			if c.mayRefresh() {
				busy = true
				out = append(out, s.send(i, creditEmpty))
			}
		}
		if c.hold {
			busy = true
			t := s
			t.end[i].hold = false
			out = append(out, t)
		}
		if reads && c.free < c.pool {
			t := s
			t.end[i].free++
			out = append(out, t)
		}
	}
	if !busy && (s.end[0].credit() < 2 || s.end[1].credit() < 2) {
		return nil, fmt.Errorf("standstill with credits %d and %d", s.end[0].credit(), s.end[1].credit())
	}
	return out, nil
}

func explore(t *testing.T, a, b, first, depth int, holds, reads bool) {
	p := Params{RecvBufs: a, PeerBufs: b, FirstSend: uint32(first), FirstRecv: uint32(first)}
	var s creditState
	s.end[0].start(p)
	p.RecvBufs, p.PeerBufs = b, a
	s.end[1].start(p)
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{}
	level, after := []creditState{s}, []creditState(nil)
	var buf []creditState
	for d := range depth {
		after = after[:0]
		for i := range level {
			var err error
			if buf, err = level[i].next(holds, reads, buf[:0]); err != nil {
				t.Fatalf("pools of %d and %d, first %d, after %d moves: %v\n%+v", a, b, first, d, err, level[i])
			}
			for _, n := range buf {
				h := maphash.Comparable(seed, n)
				if _, ok := seen[h]; !ok {
					seen[h] = struct{}{}
					after = append(after, n)
				}
			}
		}
		level, after = after, level
	}
	t.Logf("pools of %d and %d, first %d: %d states", a, b, first, len(seen))
}

// TestSDP_10_5_NoStandstill: in whatever order messages cross, spending the last credits never
// leaves both ends without credit. An end with less than two credits must always get more.
// [SDP-10.5-3] [SDP-10.5-8] [D-10]
func TestSDP_10_5_NoStandstill(t *testing.T) {
	for _, c := range []struct {
		a, b, first, depth int
		holds, reads       bool
	}{
		{a: 3, b: 3, depth: 20}, {a: 3, b: 4, depth: 18}, {a: 4, b: 4, depth: 17}, // numbers from 0: MSeqAck 0 is in doubt [D-08]
		{a: 3, b: 3, first: 100, depth: 18}, {a: 4, b: 4, first: 100, depth: 15},
		{a: 3, b: 3, depth: 14, reads: true}, {a: 3, b: 3, first: 100, depth: 12, reads: true},
		{a: 3, b: 3, depth: 15, holds: true}, {a: 3, b: 4, depth: 13, holds: true}, {a: 3, b: 3, first: 100, depth: 13, holds: true}, // [D-33]
	} {
		explore(t, c.a, c.b, c.first, c.depth, c.holds, c.reads)
	}
}
