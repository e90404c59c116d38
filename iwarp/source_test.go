package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"viaduct/iwarp/ddp"
	"viaduct/iwarp/mpa"
	"viaduct/iwarp/rdmap"
)

// A source is a RecvSource for tests: a message has a header of four bytes that
// goes to memory of its own, and payload that goes to lent memory.
type source struct {
	q     *QueuePair
	offer []byte // what Lend lends
	into  []byte
	usual int
	moved []byte // memory for the message in progress when the loan is over
	head  [4]byte
	asked int
}

// lend has the next messages come into p, whoever receives them.
func (s *source) lend(p []byte) {
	s.q.fc.WithReceiver(func() { s.offer, s.into = p, p })
}

// begun tells how many messages have begun to come.
func (s *source) begun() (n int) {
	s.q.fc.WithReceiver(func() { n = s.asked })
	return n
}

func (s *source) NextRecv(head []byte, size int, last bool) (RecvWR, bool) {
	s.asked++
	s.usual = size - len(s.head)
	n := min(s.usual, len(s.into))
	body := s.into[:n]
	s.into = s.into[n:]
	rest := s.into
	return RecvWR{ID: uint64(s.asked), SG: []SGE{Buf(s.head[:]), Buf(body), Buf(rest)}}, true
}

func (s *source) Lend(open bool) {
	if !open {
		s.into = s.offer
	}
}

func (s *source) Return()              {}
func (s *source) Full(Pending) bool    { return len(s.into) == 0 }
func (s *source) Guess() (int, []byte) { return len(s.head), s.into[:min(len(s.into), s.usual)] }
func (s *source) Reclaim(uint64) []SGE { return []SGE{Buf(s.moved)} }

// sourcePeer is a stream with a source, both ends of which have said what they
// have to, and a function that polls until a completion comes.
func sourcePeer(t *testing.T, crc bool) (*peer, *QueuePair, *source, func() Completion) {
	t.Helper()
	s := &source{}
	cfg := &Config{Source: s, RecvDepth: 64, NoNudge: true, Polled: true, Device: NewDevice(DeviceConfig{OmitCRC: !crc})}
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
	p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
	s.q = q
	poll := func() Completion {
		t.Helper()
		for end := timeUp(); !end(); {
			q.PollLent()
			var e [1]Completion
			if q.RecvCQ().Take(e[:]) == 1 {
				return e[0]
			}
		}
		t.Fatal("no completion")
		panic("")
	}
	return p, q, s, poll
}

// timeUp returns a function that tells when patience is at an end.
func timeUp() func() bool {
	end := time.Now().Add(patience)
	return func() bool { return time.Now().After(end) }
}

// longSend returns the ULPDU of a Send of one segment with n bytes of payload
// behind the header of a source.
func longSend(msn ddp.MSN, n int) []byte {
	u := rdmap.Send.UntaggedHeader(msn, 0, true, 0).Append(nil)
	u = append(u, "head"...)
	for i := range n {
		u = append(u, byte(int(msn)*31+i*7+i>>8))
	}
	return u
}

// TestSourceGuess: payload comes into lent memory whatever was guessed, with
// CRCs and without. [MPA-3-8]
func TestSourceGuess(t *testing.T) {
	p, q, s, poll := sourcePeer(t, true)
	lent := make([]byte, 40000)
	for i, n := range []int{30000, 30000, 30000, 29999, 30001, 30001, 8200, 8200, 40000, 30000, 30000} {
		s.lend(lent)
		u := longSend(ddp.MSN(i+1), n)
		f := p.enc.Append(nil, u)
		// In two parts now and then, so that it begins before all is there.
		if i%3 == 1 {
			p.raw(f[:len(f)*2/3])
			q.PollLent()
			p.raw(f[len(f)*2/3:])
		} else {
			p.raw(f)
		}
		e := poll()
		if e.Status != StatusOK || int(e.Len) != n+4 || !bytes.Equal(lent[:n], u[ddp.UntaggedLen+4:]) || string(s.head[:]) != "head" {
			t.Fatalf("message %d of %d bytes: %v, %d bytes, or others", i, n, e.Status, e.Len)
		}
		clear(lent)
	}
}

// TestSourceCRC: a long message is delivered only if its CRC is right, though it
// was read to where it belongs before. Nothing that follows is. [I-22] [MPA-6-1]
// [MPA-4.4-15] [MPA-8-8]
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
			s.lend(make([]byte, 70000))
			p.ulpdu(longSend(1, 30001))
			if e := poll(); e.Status != StatusOK {
				t.Fatal(e.Status)
			}
			f := p.enc.Append(nil, longSend(2, 30001))
			if pad := binary.BigEndian.Uint16(f); mpa.PadLen(int(pad)) == 0 {
				t.Fatal("no pad")
			}
			c.flip(f)
			p.raw(f)
			p.ulpdu(longSend(3, 100))
			for range 2 { // what was in progress, and the end
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

// TestSourceReclaim: a message in progress moves when the memory it is in is
// asked back, which nobody touches from then on; and its CRC is found right.
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
			if q.PollLent(); end() {
				t.Fatal("not begun")
			}
		}
		q.PollLent()
		q.Reclaim()
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
