package frameio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"viaduct/internal/testkit"
)

// A predictor appends the payloads of frames to out, in order. A frame has a header of eight bytes
// with the length, the payload, and a trailer of four bytes.
type predictor struct {
	predict func(*Plan) // adds predictions to a plan
	sizes   []int       // sizes of the predicted frames; nil: all are usual

	out     []byte
	usual   int // predicted length of the next payload
	missing int
	trailer bool
	right   int
	wrong   int
	plans   int // plans that had places
	landed  int
	most    int  // greatest number of predictions at a time
	shreds  bool // splits memory into many pieces
}

const predictedHead, predictedTrailer = 8, 4

func (g *predictor) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	for {
		if g.trailer {
			if len(p)-n < predictedTrailer {
				return n, 0, nil
			}
			n += predictedTrailer
			g.trailer = false
			continue
		}
		if len(p)-n < predictedHead {
			return n, 0, nil
		}
		size := int(binary.BigEndian.Uint32(p[n:]))
		if have := len(p) - n - predictedHead; have < size {
			if size < directMin || !mayPlan {
				return n, 0, nil
			}
			g.out = append(g.out, p[n+predictedHead:]...)
			g.begin(size, have)
			return len(p), g.missing, nil
		}
		g.out = append(g.out, p[n+predictedHead:][:size]...)
		n += predictedHead + size
		g.begin(size, size)
	}
}

func (g *predictor) begin(size, have int) {
	g.usual, g.missing, g.trailer = size, size-have, true
}

func (g *predictor) Plan(to *Plan) {
	if g.missing > 0 {
		at := g.out[len(g.out) : len(g.out)+g.missing]
		if g.shreds {
			to.Frame = slices.AppendSeq(to.Frame, slices.Chunk(at, 5))
		} else {
			to.Frame = append(to.Frame, at)
		}
	}
	if g.predict != nil {
		g.predict(to)
	}
	if len(to.Predicted) > 0 || len(to.Frame) > 0 {
		g.plans++
	}
	g.most = max(g.most, len(to.Predicted))
}

// same predicts frames that are as long as the last one.
func (g *predictor) same(to *Plan) {
	if g.usual < directMin {
		return
	}
	gap, at := 0, len(g.out)+g.missing
	if g.trailer {
		gap = predictedTrailer
	}
	for to.Room() && at+g.usual <= cap(g.out) {
		to.Predict(gap+predictedHead, g.out[at:at+g.usual])
		gap = predictedTrailer
		at += g.usual
	}
}

func (g *predictor) Landed(p *Plan, n, behind int) (taken, missing int, err error) {
	g.landed++
	g.out = g.out[:len(g.out)+n]
	g.missing -= n
	for _, f := range p.Predicted {
		if behind <= len(f.Header) {
			break
		}
		if len(g.sizes) > 0 {
			g.usual, g.sizes = g.sizes[0], g.sizes[1:]
		}
		k, right := g.header(f)
		taken += k
		if !right {
			break
		}
		k = min(behind-len(f.Header), len(f.Place))
		g.out = g.out[:len(g.out)+k]
		g.begin(g.usual, k)
		taken += k
		behind -= len(f.Header) + k
	}
	return taken, g.missing, nil
}

// header returns how many bytes of the header of f it consumes, and whether the prediction was
// right.
func (g *predictor) header(f Prediction) (taken int, right bool) {
	if g.trailer {
		taken = predictedTrailer
	}
	size := int(binary.BigEndian.Uint32(f.Header[taken:]))
	if size == g.usual && &f.Place[0] == &g.out[len(g.out) : len(g.out)+1][0] {
		g.right++
		return len(f.Header), true
	}
	if g.wrong++; g.wrong%2 == 0 {
		taken = 0 // equally valid
	}
	g.trailer = g.trailer && taken == 0
	return taken, false
}

func (g *predictor) Fill(*Batch)  {}
func (g *predictor) Sent()        {}
func (g *predictor) Drained()     {}
func (g *predictor) Failed(error) {}

// TestPredictions checks that predicted payload arrives unchanged, whether the prediction was right
// or wrong, and wherever the stream is cut.
func TestPredictions(t *testing.T) {
	a, b := testkit.TCPPair(t)
	rnd := rand.New(rand.NewPCG(5, 6))
	const total = 64 << 20
	g := &predictor{out: make([]byte, 0, total+4<<20)}
	g.predict = g.same
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
		case 2: // a short frame in between
			stream, want = predictedFrame(stream, want, rnd.IntN(directMin), rnd)
		}
		at := len(stream)
		stream, want = predictedFrame(stream, want, size, rnd)
		switch rnd.IntN(60) { // cut near a boundary
		case 0:
			cuts = append(cuts, at+rnd.IntN(predictedHead+2))
		case 1:
			cuts = append(cuts, len(stream)-rnd.IntN(predictedTrailer+2))
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
		for p := stream[cuts[i]:end]; len(p) > 0; { // let all of it arrive before a read
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
	if g.right < 100 || g.wrong < 10 || g.most < 2*minPredictions {
		t.Errorf("%d predictions were right and %d wrong, up to %d at a time: not enough to tell",
			g.right, g.wrong, g.most)
	}
	if g.landed != g.plans {
		t.Errorf("%d plans were made, and %d landed", g.plans, g.landed)
	}
}

func (c *Conn) receiveForTest() (got bool, err error) {
	c.att.Lock()
	defer c.att.Unlock()
	got, more, err := c.receive(false)
	if err == nil && !more && len(c.rx.early) > 0 && !c.rx.left {
		err = fmt.Errorf("%d bytes were read and are not looked at", len(c.rx.early))
	}
	return got, err
}

// A sated consumes its input and then returns ErrEnough.
type sated struct{ predictor }

func (*sated) Receive(p []byte, _ bool) (n, missing int, err error) { return len(p), 0, ErrEnough }

// TestLeftBehindStaging: bytes that did not fit into staging are also left for later.
func TestLeftBehindStaging(t *testing.T) {
	_, b := testkit.TCPPair(t)
	c := New(b, &sated{}, Options{})
	defer c.Close()
	r := &c.rx
	r.restage()
	r.fill, r.early = stageSize, make([]byte, 1)
	if err := c.handle(); err != ErrEnough || !r.left {
		t.Errorf("left %t, %v", r.left, err)
	}
	if r.refill(); r.fill != 1 {
		t.Errorf("%d bytes come next", r.fill)
	}
}

// TestManyPieces: several reads fill memory that has more pieces than one read call takes.
func TestManyPieces(t *testing.T) {
	a, b := testkit.TCPPair(t)
	g := &predictor{out: make([]byte, 0, 1<<20), shreds: true}
	g.predict = g.same
	c := New(b, g, Options{})
	defer c.Close()
	if c.StartPolled(nil); c.sock.Load() == nil {
		t.Skip("no fast path on this system")
	}
	stream, want := predictedFrame(nil, nil, 40000, rand.New(rand.NewPCG(1, 1)))
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

// TestPredictionDoubt: few predictions are made if most were wrong.
func TestPredictionDoubt(t *testing.T) {
	a, b := testkit.TCPPair(t)
	g := &predictor{out: make([]byte, 0, 16<<20)}
	g.predict = g.same
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
		if stream, want = predictedFrame(stream, want, 20000+i%2*9999, rnd); i%2 == 0 {
			continue
		}
		for at -= 20000 + predictedHead + predictedTrailer; at < len(stream); { // one frame at a time
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
		t.Errorf("%d predictions of %d were wrong", g.wrong, frames)
	}
}

func predictedFrame(stream, want []byte, size int, rnd *rand.Rand) (s, w []byte) {
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
