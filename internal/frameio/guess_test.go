package frameio

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"viaduct/internal/testkit"
)

// A guesser gathers the payloads of frames in out, in order: a header of eight
// bytes with the length, the payload, and a trailer of four bytes.
type guesser struct {
	out     []byte
	usual   int // length of the next payload, by guess
	missing int
	trailer bool
	right   int
	wrong   int
	guesses int // reads for which guesses were made
	over    int
	most    int  // guesses at a time
	shreds  bool // memory is in many pieces
}

const guessHead, guessTrailer = 8, 4

func (g *guesser) Receive(p []byte, mayDirect bool) (n, direct int, err error) {
	for {
		if g.trailer {
			if len(p)-n < guessTrailer {
				return n, 0, nil
			}
			n += guessTrailer
			g.trailer = false
			continue
		}
		if len(p)-n < guessHead {
			return n, 0, nil
		}
		size := int(binary.BigEndian.Uint32(p[n:]))
		if have := len(p) - n - guessHead; have < size {
			if size < directMin || !mayDirect {
				return n, 0, nil
			}
			g.out = append(g.out, p[n+guessHead:]...)
			g.begin(size, have)
			return len(p), g.missing, nil
		}
		g.out = append(g.out, p[n+guessHead:][:size]...)
		n += guessHead + size
		g.begin(size, size)
	}
}

func (g *guesser) begin(size, have int) {
	g.usual, g.missing, g.trailer = size, size-have, true
}

func (g *guesser) Guess(to []Guess) []Guess {
	if g.usual < directMin {
		return to
	}
	g.guesses++
	gap, at := 0, len(g.out)+g.missing
	if g.trailer {
		gap = guessTrailer
	}
	for len(to) < cap(to) && at+g.usual <= cap(g.out) {
		to = append(to, Guess{gap + guessHead, g.out[at : at+g.usual]})
		gap = guessTrailer
		at += g.usual
	}
	g.most = max(g.most, len(to))
	return to
}

func (g *guesser) Guessed(h []byte, at Guess, left int) (int, int, error) {
	taken := 0
	if g.trailer {
		taken = guessTrailer
	}
	size := int(binary.BigEndian.Uint32(h[taken:]))
	if size != g.usual || &at.Place[0] != &g.out[len(g.out) : len(g.out)+1][0] {
		if g.wrong++; g.wrong%2 == 0 {
			taken = 0 // as good
		}
		g.trailer = g.trailer && taken == 0
		return taken, 0, ErrWrongGuess
	}
	g.right++
	n := min(left-len(h), size)
	g.out = g.out[:len(g.out)+n]
	g.begin(size, n)
	return len(h), g.missing, nil
}

func (g *guesser) GuessesOver() { g.over++ }

func (g *guesser) Direct(iov [][]byte) ([][]byte, error) {
	if g.shreds {
		return slices.AppendSeq(iov, slices.Chunk(g.out[len(g.out):len(g.out)+g.missing], 5)), nil
	}
	return append(iov, g.out[len(g.out):len(g.out)+g.missing]), nil
}

func (g *guesser) DirectDone(n int) error {
	g.out = g.out[:len(g.out)+n]
	g.missing -= n
	return nil
}

func (g *guesser) Fill(*Batch)  {}
func (g *guesser) Sent()        {}
func (g *guesser) Drained()     {}
func (g *guesser) Failed(error) {}

// TestGuess: payload whose place was guessed is the same as any other, whether
// the guess was right or wrong, and wherever the bytes are cut.
func TestGuess(t *testing.T) {
	a, b := testkit.TCPPair(t)
	rnd := rand.New(rand.NewPCG(5, 6))
	const total = 64 << 20
	g := &guesser{out: make([]byte, 0, total+4<<20)}
	c := New(b, g, Options{})
	defer c.Close()
	if c.StartPolled(nil); c.sock.Load() == nil {
		t.Skip("no fast path on this system")
	}
	receive := c.receiveForTest
	var stream, want []byte
	cuts := []int{0}
	for size := 20000; len(want) < total; {
		switch rnd.IntN(200) {
		case 0:
			size = directMin + rnd.IntN(60000)
		case 1: // a little more or less
			size += rnd.IntN(17) - 8
		case 2: // a short one in between
			stream, want = guessFrame(stream, want, rnd.IntN(directMin), rnd)
		}
		at := len(stream)
		stream, want = guessFrame(stream, want, size, rnd)
		switch rnd.IntN(60) { // cut near what matters
		case 0:
			cuts = append(cuts, at+rnd.IntN(guessHead+2))
		case 1:
			cuts = append(cuts, len(stream)-rnd.IntN(guessTrailer+2))
		case 2:
			cuts = append(cuts, at+rnd.IntN(len(stream)-at))
		case 3:
			cuts = append(cuts, len(stream))
		}
	}
	for i := range cuts {
		end := len(stream)
		if i+1 < len(cuts) {
			end = max(cuts[i], cuts[i+1])
			cuts[i+1] = end
		}
		for p := stream[cuts[i]:end]; len(p) > 0; { // all of it has arrived before it is looked at
			k := min(len(p), 400<<10)
			if _, err := a.Write(p[:k]); err != nil {
				t.Fatal(err)
			}
			p = p[k:]
			for {
				got, err := receive()
				if err != nil {
					t.Fatal(err)
				}
				if !got {
					break
				}
			}
		}
	}
	a.(interface{ CloseWrite() error }).CloseWrite()
	for {
		_, err := receive()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(g.out, want) {
		t.Errorf("%d bytes, %d sent, or others", len(g.out), len(want))
	}
	if g.right < 100 || g.wrong < 10 || g.most < 2*minGuesses {
		t.Errorf("%d guesses were right and %d wrong, up to %d at a time: not enough to tell", g.right, g.wrong, g.most)
	}
	if g.over != g.guesses {
		t.Errorf("%d guesses were made, and %d ended", g.guesses, g.over)
	}
}

func (c *Conn) receiveForTest() (got bool, err error) {
	c.att.Lock()
	defer c.att.Unlock()
	got, _, err = c.receive(false)
	return got, err
}

// TestManyPieces: memory in more pieces than one call takes is read to by several.
func TestManyPieces(t *testing.T) {
	a, b := testkit.TCPPair(t)
	g := &guesser{out: make([]byte, 0, 1<<20), shreds: true}
	c := New(b, g, Options{})
	defer c.Close()
	if c.StartPolled(nil); c.sock.Load() == nil {
		t.Skip("no fast path on this system")
	}
	stream, want := guessFrame(nil, nil, 40000, rand.New(rand.NewPCG(1, 1)))
	for _, p := range [][]byte{stream[:directMin+100], stream[directMin+100:]} {
		if _, err := a.Write(p); err != nil {
			t.Fatal(err)
		}
		for before := len(g.out); len(g.out) == before || len(p) > directMin+100 && len(g.out) < len(want); {
			if _, err := c.receiveForTest(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(g.out, want) {
		t.Error("other bytes")
	}
}

// TestGuessDoubt: where guesses are wrong most of the time few are made.
func TestGuessDoubt(t *testing.T) {
	a, b := testkit.TCPPair(t)
	g := &guesser{out: make([]byte, 0, 16<<20)}
	c := New(b, g, Options{})
	defer c.Close()
	if c.StartPolled(nil); c.sock.Load() == nil {
		t.Skip("no fast path on this system")
	}
	rnd := rand.New(rand.NewPCG(7, 8))
	const frames = 400
	var stream, want []byte
	for i := range frames {
		at := len(stream)
		if stream, want = guessFrame(stream, want, 20000+i%2*9999, rnd); i%2 == 0 {
			continue
		}
		for at -= 20000 + guessHead + guessTrailer; at < len(stream); { // by and by
			k := min(15000, len(stream)-at)
			if _, err := a.Write(stream[at : at+k]); err != nil {
				t.Fatal(err)
			}
			for at += k; ; {
				if got, err := c.receiveForTest(); err != nil {
					t.Fatal(err)
				} else if !got {
					break
				}
			}
		}
	}
	for len(g.out) < len(want) {
		if _, err := c.receiveForTest(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(g.out, want) {
		t.Error("other bytes")
	}
	if g.wrong == 0 || g.wrong > frames/20 {
		t.Errorf("%d guesses of %d were wrong", g.wrong, frames)
	}
}

func guessFrame(stream, want []byte, size int, rnd *rand.Rand) (s, w []byte) {
	stream = binary.BigEndian.AppendUint32(stream, uint32(size))
	stream = append(stream, "head"...)
	at := len(stream)
	for range size/8 + 1 {
		stream = binary.LittleEndian.AppendUint64(stream, rnd.Uint64())
	}
	stream = stream[:at+size]
	want = append(want, stream[at:]...)
	return append(stream, "tail"...), want
}
