package frameio

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"viaduct/internal/testkit"
)

// A seer is a predictor that reads the arrived headers by LookAhead instead of guessing.
type seer struct {
	predictor
	t *testing.T
	c *Conn
}

func (s *seer) see(to *Plan) {
	gap, off, at := 0, s.missing, len(s.out)+s.missing
	if s.trailer {
		gap = predictedTrailer
	}
	come := s.c.Ahead()
	s.sizes = s.sizes[:0]
	for to.Room() {
		var h [predictedHead]byte
		there := s.c.LookAhead(off+gap, h[:])
		if had := off+gap+len(h) <= come; had && !there {
			s.t.Errorf("nothing to be seen %d bytes ahead of %d", off+gap, come)
		}
		if !there {
			break
		}
		if string(h[4:]) != "head" {
			s.t.Fatalf("%q seen %d bytes ahead, of %d", h, off+gap, come)
		}
		size := int(binary.BigEndian.Uint32(h[:]))
		if size < 1000 || len(s.out)+size > cap(s.out) {
			break
		}
		to.Predict(gap+predictedHead, s.out[at:at+size])
		s.sizes = append(s.sizes, size)
		off += gap + predictedHead + size
		at += size
		gap = predictedTrailer
	}
}

// TestLookAhead: arrived bytes can be peeked at any offset and remain unread, and a later peek at
// the socket returns the next unread byte.
func TestLookAhead(t *testing.T) {
	a, b := testkit.TCPPair(t)
	rnd := rand.New(rand.NewPCG(8, 9))
	const total = 12 << 20
	s := &seer{predictor: predictor{out: make([]byte, 0, total+4<<20)}, t: t}
	s.predict = s.see
	s.c = New(b, s, Options{})
	defer s.c.Close()
	if s.c.StartPolled(nil); s.c.sock.Load() == nil {
		t.Skip("no fast path on this system")
	}
	if !s.c.looksAheadForTest() {
		t.Skip("this system shows nothing but the next bytes")
	}
	var stream, want []byte
	for len(want) < total {
		size := 1000 + rnd.IntN(60000)
		if rnd.IntN(10) == 0 {
			size = rnd.IntN(1000)
		}
		stream, want = predictedFrame(stream, want, size, rnd)
	}
	socket := s.c.sock.Load()
	for p := stream; len(p) > 0; {
		k := min(len(p), 1+rnd.IntN(400<<10)*rnd.IntN(2))
		if _, err := a.Write(p[:k]); err != nil {
			t.Fatal(err)
		}
		p = p[k:]
		for socket.Pending() == 0 {
		}
		if some, err := socket.Readable(); !some {
			t.Fatalf("%t, %v, with %d bytes to be read", some, err, socket.Pending())
		}
		for {
			got, err := s.c.receiveForTest()
			if err != nil {
				t.Fatal(err)
			}
			if !got {
				break
			}
		}
	}
	a.(interface{ CloseWrite() error }).CloseWrite()
	for {
		if _, err := s.c.receiveForTest(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(s.out, want) {
		t.Errorf("%d bytes, %d sent, or others", len(s.out), len(want))
	}
	if s.right < 100 || s.wrong > 0 || s.most < 4 {
		t.Errorf("%d looks were right and %d wrong, up to %d at a time", s.right, s.wrong, s.most)
	}
	if s.landed != s.plans {
		t.Errorf("%d plans were made, and %d landed", s.plans, s.landed)
	}
}

// looksAheadForTest reports whether the system can look ahead, after a trial.
func (c *Conn) looksAheadForTest() bool {
	c.att.Lock()
	defer c.att.Unlock()
	c.LookAhead(0, make([]byte, 1))
	c.rx.ahead.peeked = false
	c.sock.Load().PeekFront()
	return LooksAhead()
}
