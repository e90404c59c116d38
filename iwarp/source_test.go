package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"viaduct/internal/ulp"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A source is a [ulp.Source] for tests. A message has a header of four bytes, for which the source
// has memory, and payload, which goes to lent memory.
type source struct {
	q       *QueuePair
	into    []byte
	usual   int
	moved   []byte // where Reclaim moves the current message
	head    [4]byte
	asked   int
	open    int    // length of the current message
	partial int    // value of Guess.Partial
	limit   int    // number of messages after which Full returns true; 0 for no limit
	guesses int    // number of calls of Guess
	sends   []bool // results of IsSend in Full
	long    []int  // payload of each message; nil: twoSegments for several segments
}

// lend makes the next messages arrive in p, whichever goroutine receives them.
func (s *source) lend(p []byte) {
	s.q.link.fc.WithReceiver(func() { s.into = p })
}

// begun returns the number of messages that have begun to arrive.
func (s *source) begun() (n int) {
	s.q.link.fc.WithReceiver(func() { n = s.asked })
	return n
}

func (s *source) NextRecv(head []byte, size int, last bool) (RecvWR, bool) {
	s.asked++
	s.open = size
	if !last { // a message with two segments has twoSegments bytes of payload in these tests
		s.open = twoSegments + len(s.head)
	}
	if len(s.long) > 0 {
		s.open = s.long[s.asked-1] + len(s.head)
	}
	s.usual = s.open - len(s.head)
	n := min(s.usual, len(s.into))
	body := s.into[:n]
	s.into = s.into[n:]
	rest := s.into
	return RecvWR{ID: uint64(s.asked), SG: []SGE{Buf(s.head[:]), Buf(body), Buf(rest)}}, true
}

func (s *source) Keep() bool { return true }
func (s *source) Full(next ulp.Pending) bool {
	s.sends = append(s.sends, next.IsSend())
	return len(s.into) == 0 || s.limit > 0 && s.asked >= s.limit
}
func (s *source) Guess() ulp.Guess {
	s.guesses++
	return ulp.Guess{Open: s.open, Header: len(s.head), Size: s.usual, Payload: s.into, Partial: s.partial}
}
func (s *source) Reclaim(uint64) (RecvWR, bool) { return RecvWR{SG: []SGE{Buf(s.moved)}}, true }
func (s *source) SetStream(ulp.Stream[SendWR])  {}

// sourcePeer returns a stream with a source, after the first messages of both ends. The returned
// function polls until a completion arrives, and returns it.
func sourcePeer(t *testing.T, crc bool) (*peer, *QueuePair, *source, func() Completion) {
	t.Helper()
	s := &source{}
	cfg := &Config{Source: s, RecvDepth: 64, Interop: Interop{NoNudge: true}, Polled: true, Device: NewDevice(DeviceConfig{NoCRC: !crc})}
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
	p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
	s.q = q
	poll := func() Completion {
		t.Helper()
		for end := timeUp(); !end(); {
			q.poll()
			var e [1]Completion
			if takeN(q, e[:]) == 1 {
				return e[0]
			}
		}
		t.Fatal("no completion")
		panic("")
	}
	return p, q, s, poll
}

// warmUp sends a message of n bytes of payload in two parts, so that the next messages are
// predicted to be like it.
func warmUp(p *peer, q *QueuePair, s *source, poll func() Completion, n int) {
	p.t.Helper()
	s.partial = 100
	f := p.enc.Append(nil, longSend(1, n))
	p.raw(f[:len(f)/2])
	for end := timeUp(); s.begun() < 1; {
		if q.poll(); end() {
			p.t.Fatal("not begun")
		}
	}
	p.raw(f[len(f)/2:])
	if e := poll(); e.Status != StatusOK {
		p.t.Fatal(e.Status)
	}
}

// takeN polls completions without polling the connection.
func takeN(q *QueuePair, e []Completion) int {
	n := q.RecvCQ().q.PollN(e)
	taken(e[:n])
	return n
}

// timeUp returns a function that reports whether patience has passed since timeUp was called.
func timeUp() func() bool {
	end := time.Now().Add(patience)
	return func() bool { return time.Now().After(end) }
}

// longSend returns the ULPDU of a Send of one segment: a header and n bytes of payload.
func longSend(msn ddp.MSN, n int) []byte {
	u := rdmap.Send.UntaggedHeader(msn, 0, true, 0).Append(nil)
	u = append(u, "head"...)
	for i := range n {
		u = append(u, byte(int(msn)*31+i*7+i>>8))
	}
	return u
}

// TestSourceGuess checks that payload arrives in lent memory whether or not the prediction is
// right. Each message must take one receive. [MPA-3-8] [RDMAP-5.3-2]
func TestSourceGuess(t *testing.T) {
	p, q, s, poll := sourcePeer(t, true)
	lent := make([]byte, 40000)
	for i, n := range []int{30000, 30000, 30000, 29999, 30001, 30001, 8200, 8200, 40000, 30000, 30000} {
		s.lend(lent)
		u := longSend(ddp.MSN(i+1), n)
		f := p.enc.Append(nil, u)
		// Some messages are sent in two parts, so that they begin before all of their bytes have
		// arrived.
		if i%3 == 1 {
			p.raw(f[:len(f)*2/3])
			q.poll()
			p.raw(f[len(f)*2/3:])
		} else {
			p.raw(f)
		}
		e := poll()
		if e.Status != StatusOK || e.ID != uint64(i+1) || int(e.Len) != n+4 ||
			!bytes.Equal(lent[:n], u[ddp.UntaggedLen+4:]) || string(s.head[:]) != "head" {
			t.Fatalf("message %d of %d bytes: %v, %d bytes, or others", i, n, e.Status, e.Len)
		}
		clear(lent)
	}
}

// twoSegments is the payload of the messages the tests send in two segments.
const twoSegments = 50001

// TestSourceStream checks that many messages, some of two segments with a Write between them,
// arrive in lent memory by few reads. Messages may or may not be like earlier messages, the stream
// is cut at many places, and CRCs are on or off.
func TestSourceStream(t *testing.T) {
	for _, crc := range []bool{false, true} {
		for _, partial := range []int{0, 1, 100} {
			p, q, s, _ := sourcePeer(t, crc)
			s.partial = partial
			target, err := q.PD().Register(make([]byte, 20000), RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			var stream, want []byte
			var ends, cuts []int
			for i, n := range []int{20000, 20000, 20000, 20000, twoSegments, twoSegments, twoSegments, 20000, 20000, 9000, twoSegments, twoSegments, 20001, 20001, 20001, 20001} {
				u := longSend(ddp.MSN(i+1), n)
				want = append(want, u[ddp.UntaggedLen+len(s.head):]...)
				if n == twoSegments {
					const first = 30000
					a := rdmap.Send.UntaggedHeader(ddp.MSN(i+1), 0, false, 0).Append(nil)
					b := rdmap.Send.UntaggedHeader(ddp.MSN(i+1), first, true, 0).Append(nil)
					stream = p.enc.Append(stream, append(a, u[ddp.UntaggedLen:][:first]...))
					if i%3 != 1 {
						w := rdmap.Write.TaggedHeader(target.STag(), target.TO(), true).Append(nil)
						cuts = append(cuts, len(stream)+6000) // cuts in the middle of the Write
						stream = p.enc.Append(stream, append(w, make([]byte, 20000)...))
					}
					stream = p.enc.Append(stream, append(b, u[ddp.UntaggedLen+first:]...))
				} else {
					stream = p.enc.Append(stream, u)
				}
				ends = append(ends, len(stream))
			}
			lent := make([]byte, len(want)+100)
			s.lend(lent)
			q.poll()
			done, sent := 0, 0
			for i := 0; done < len(ends); i++ {
				k := min(len(stream)-sent, 70001+i*997)
				if len(cuts) > 0 && cuts[0]-sent <= k {
					k, cuts = cuts[0]-sent, cuts[1:]
				}
				if k > 0 {
					p.raw(stream[sent : sent+k])
					sent += k
				}
				for end := timeUp(); done < len(ends) && ends[done] <= sent; {
					if end() {
						t.Fatalf("crc %t, partial %d: %d messages", crc, partial, done)
					}
					q.poll()
					var e [1]Completion
					for takeN(q, e[:]) == 1 {
						if e[0].Status != StatusOK {
							t.Fatalf("crc %t, partial %d: message %d: %v", crc, partial, done, e[0].Status)
						}
						done++
					}
				}
			}
			if !bytes.Equal(lent[:len(want)], want) {
				t.Errorf("crc %t, partial %d: other bytes", crc, partial)
			}
			q.link.fc.WithReceiver(func() {
				if s.guesses == 0 {
					t.Errorf("crc %t, partial %d: nothing was guessed", crc, partial)
				}
				if len(q.rx.Planned()) > 0 {
					t.Error("memory is pinned still")
				}
			})
		}
	}
}

// TestSourceLonger sends a message that ends with a full segment, after longer ones. The prediction
// then assumes one more segment before the next message, whose first bytes were therefore read to a
// wrong place.
func TestSourceLonger(t *testing.T) {
	const full = 30000 // payload of a segment that does not end a message
	for _, crc := range []bool{false, true} {
		for _, rest := range []int{full, 9000, full, 9000, full, 9000} {
			p, q, s, poll := sourcePeer(t, crc)
			s.partial = 100
			hl := len(s.head)
			s.long = []int{2*full - hl, 2*full - hl, 3*full - hl, 3*full - hl, 4*full + rest - hl,
				full + rest - hl, 5*full - hl}
			var stream, want []byte
			for i, n := range s.long {
				u := longSend(ddp.MSN(i+1), n)[ddp.UntaggedLen:]
				want = append(want, u[hl:]...)
				for at := 0; at < len(u); at += full {
					end := min(at+full, len(u))
					h := rdmap.Send.UntaggedHeader(ddp.MSN(i+1), uint32(at), end == len(u), 0).Append(nil)
					stream = p.enc.Append(stream, append(h, u[at:end]...))
				}
			}
			lent := make([]byte, len(want)+8*full)
			s.lend(lent)
			// The first message is begun alone, so that the next ones are predicted.
			p.raw(stream[:full/3])
			for end := timeUp(); s.begun() < 1; {
				if q.poll(); end() {
					t.Fatal("not begun")
				}
			}
			p.raw(stream[full/3:])
			for i := range s.long {
				if e := poll(); e.Status != StatusOK {
					t.Fatalf("crc %t, rest %d: message %d: %v, %v", crc, rest, i, e.Status, q.Err())
				}
			}
			if !bytes.Equal(lent[:len(want)], want) {
				t.Errorf("crc %t, rest %d: other bytes", crc, rest)
			}
		}
	}
}

// TestSourceFull checks that a message the source refuses for now stays unread, even if it was read
// together with the previous message.
func TestSourceFull(t *testing.T) {
	p, q, s, poll := sourcePeer(t, true)
	lent := make([]byte, 200000)
	s.lend(lent)
	warmUp(p, q, s, poll, 30001)
	var f, want []byte
	for msn := ddp.MSN(2); msn <= 5; msn++ {
		u := longSend(msn, 30001)
		f = p.enc.Append(f, u)
		want = append(want, u[ddp.UntaggedLen+len(s.head):]...)
	}
	s.lend(lent)
	q.link.fc.WithReceiver(func() { s.limit = 3 })
	p.raw(f)
	for range 2 {
		poll()
	}
	begun := 0
	for range 10 {
		q.poll()
		begun = s.begun()
	}
	if begun != 3 {
		t.Fatalf("%d messages have begun", begun)
	}
	rest := make([]byte, 70000)
	// Both change at once, because another goroutine may receive what was left.
	q.link.fc.WithReceiver(func() { s.limit, s.into = 0, rest })
	for range 2 {
		poll()
	}
	if n := 2 * 30001; !bytes.Equal(lent[:n], want[:n]) || !bytes.Equal(rest[:n], want[n:]) {
		t.Error("other bytes")
	}
}

// TestSourceIsSend checks that the source can distinguish messages that take a receive from others.
func TestSourceIsSend(t *testing.T) {
	p, q, s, poll := sourcePeer(t, true)
	s.lend(make([]byte, 100000))
	write := rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil)
	f := p.enc.Append(nil, write)
	f = p.enc.Append(f, longSend(1, 1000))
	f = p.enc.Append(f, write)
	p.raw(p.enc.Append(f, longSend(2, 1000)))
	poll()
	poll()
	var kinds []bool
	q.link.fc.WithReceiver(func() { kinds = s.sends })
	// IsSend returns false for a message of which too little has arrived.
	kinds = slices.DeleteFunc(kinds[:len(kinds):len(kinds)], func(k bool) bool { return !k })
	if len(kinds) != 2 {
		t.Errorf("of two Writes and two Sends, %d are said to be Sends", len(kinds))
	}
}

// TestSourceCRC checks that a long message is delivered only if its CRC is right, although it was
// read into place before, and that later messages are not delivered after a wrong CRC. [I-22]
// [MPA-6-1] [MPA-4.4-15] [MPA-8-8]
func TestSourceCRC(t *testing.T) {
	for _, c := range []struct {
		what string
		flip func(f []byte)
	}{
		{"payload", func(f []byte) { f[25000] ^= 4 }},
		{"header", func(f []byte) { f[2+ddp.UntaggedLen+1] ^= 4 }},
		{"CRC", func(f []byte) { f[len(f)-1] ^= 4 }},
		{"pad", func(f []byte) { f[len(f)-5] ^= 4 }},
	} {
		t.Run(c.what, func(t *testing.T) {
			p, q, s, poll := sourcePeer(t, true)
			s.lend(make([]byte, 200000))
			warmUp(p, q, s, poll, 30001)
			f := p.enc.Append(nil, longSend(2, 30001))
			if pad := binary.BigEndian.Uint16(f); mpa.PadLen(int(pad)) == 0 {
				t.Fatal("no pad")
			}
			c.flip(f)
			for msn := range ddp.MSN(3) { // all has arrived before anything is read
				f = p.enc.Append(f, longSend(3+msn, 30001))
			}
			p.raw(f)
			for range 2 { // polls the current message, and then the end of the stream
				e := poll()
				if e.Status == StatusOK {
					t.Errorf("delivered: %+v", e)
				}
				if e.Status == StatusFlushed {
					break
				}
			}
			<-q.Ended()
			if ce, ok := errors.AsType[*mpa.CRCError](q.Err()); !ok || ce.Field == ce.Computed {
				t.Errorf("ended by %v", q.Err())
			}
		})
	}
}

// TestSourceReclaim reclaims the memory of a message that has arrived in part. The message must
// move to other memory, nothing may touch the reclaimed memory afterwards, and the CRC must still
// be right.
func TestSourceReclaim(t *testing.T) {
	for _, at := range []int{10, 30, 9000, 20000} {
		p, q, s, poll := sourcePeer(t, true)
		lent := make([]byte, 30000)
		s.lend(lent)
		s.moved = make([]byte, 40000)
		p.ulpdu(longSend(1, 20000))
		poll()
		s.lend(lent)
		u := longSend(2, 30000)
		f := p.enc.Append(nil, u)
		begins := at > 2+ddp.UntaggedLen
		p.raw(f[:at])
		for end := timeUp(); begins && s.begun() < 2; {
			if q.poll(); end() {
				t.Fatal("not begun")
			}
		}
		q.poll()
		(*stream)(q).Reclaim()
		for i := range lent {
			lent[i] = 0xee
		}
		if !begins {
			s.lend(make([]byte, 30000))
		}
		p.raw(f[at:])
		e := poll()
		if e.Status != StatusOK || int(e.Len) != 30004 {
			t.Fatalf("cut at %d: %v, %d bytes", at, e.Status, e.Len)
		}
		if begins && !bytes.Equal(s.moved[:e.Len], u[ddp.UntaggedLen:]) {
			t.Errorf("cut at %d: other bytes", at)
		}
		if bytes.Count(lent, []byte{0xee}) != len(lent) {
			t.Errorf("cut at %d: memory was touched after it was given back", at)
		}
	}
}
