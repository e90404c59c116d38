package placer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"viaduct/internal/frameio"
	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/testkit"
)

// The kinds of a test frame. Each frame has a header of four bytes (size, kind and zero), followed
// by the payload.
const (
	plain   = iota // only the payload follows the header
	summed         // a sum follows the payload, like the CRC of an FPDU
	watched        // the last bytes become visible after all others, as for VI/TCP's Writes
	dropped        // the payload of the frame is dropped
	kinds
)

const header, sumLen, watchedLen, least = 4, 4, 8, 8 << 10

// A model is a protocol of test frames. The payload of each frame is placed after the payload of
// the previous frame.
type model struct {
	placer.Placer
	region *regmem.Region
	at     int // offset in the payload of the current frame
	size   int
	kind   byte
	ends   int
	right  int // number of predictions that matched
	lost   error
	failed chan error
}

func newModel(tb testing.TB, n int) *model {
	r, err := regmem.New(regmem.Limits{}).Register(make([]byte, n), regmem.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	m := &model{region: r, failed: make(chan error, 1)}
	m.Wire = m
	return m
}

func (m *model) trailer() int { return map[byte]int{summed: sumLen}[m.kind] }

func (m *model) parse(p []byte) { m.size, m.kind = int(binary.BigEndian.Uint16(p)), p[2]%kinds }

func (m *model) Next(p []byte, early bool, f *placer.Frame) (n int, payload []byte, ok bool, err error) {
	if len(p) < header {
		return 0, nil, false, nil
	}
	m.parse(p)
	come := p[header:]
	if len(come) >= m.size+m.trailer() {
		f.Begin(m.size, 0, nil)
		return header + m.size + m.trailer(), come[:m.size], true, nil
	}
	if !early || m.size-len(come) < least {
		return 0, nil, false, nil
	}
	m.begin(f)
	return len(p), come, true, nil
}

// begin begins the current frame of m in f.
func (m *model) begin(f *placer.Frame) {
	last := 0
	if m.kind == watched {
		last = watchedLen
	}
	f.Begin(m.size-last, m.trailer()+last, nil)
	f.Watched = m.kind == watched
}

func (m *model) Target(off, n int) regmem.Ref {
	if m.kind == dropped {
		return regmem.Ref{}
	}
	n = min(n, 10000-(m.at+off)%10000) // the memory is in pieces of 10000 bytes
	ref, out := m.region.Access(m.region.Base()+uint64(m.at+off), uint64(n), nil, nil, regmem.LocalWrite)
	if out != regmem.OK {
		m.lost = fmt.Errorf("%d bytes at %d: %v", n, m.at+off, out)
	}
	return ref
}

func (m *model) Lost(err error) { m.lost = err }

func (m *model) End(trailer []byte) error {
	switch {
	case m.kind == watched && len(trailer) > 0:
		m.Place(trailer)
	case m.kind == summed && len(trailer) > 0:
		if got := sum(m.region.Bytes()[m.at : m.at+m.size]); got != binary.BigEndian.Uint32(trailer) {
			return fmt.Errorf("frame %d: sum %x, not %x", m.ends, got, trailer)
		}
	}
	m.ends++
	if m.kind != dropped {
		m.at += m.size
	}
	return nil
}

// Predict predicts one frame with the size and kind of the last, in contiguous memory.
func (m *model) Predict(to *placer.Predictions) {
	at := m.at
	if m.Open() && m.kind != dropped {
		at += m.size
	}
	last := 0
	if m.kind == watched {
		last = watchedLen
	}
	for n := m.size - last; n > least && m.kind != dropped && at+m.size <= m.region.Len(); at += m.size {
		ref, _ := m.region.Access(m.region.Base()+uint64(at), uint64(n), nil, nil, regmem.LocalWrite)
		if !to.Add(header, ref, n, m.trailer()+last) {
			return
		}
	}
}

func (m *model) Predicted(headers, place []byte, _ int, f *placer.Frame) (payload []byte, ok bool, err error) {
	size, kind := m.size, m.kind
	if m.parse(headers); m.size != size || m.kind != kind || &place[0] != &m.region.Bytes()[m.at] {
		return nil, false, nil
	}
	m.right++
	m.begin(f)
	return nil, true, nil
}

func (*model) Fill(*frameio.Batch) {}
func (*model) Sent()               {}
func (*model) Drained()            {}
func (m *model) Failed(err error)  { m.failed <- err }

func sum(p []byte) (s uint32) {
	for _, b := range p {
		s = s*31 + uint32(b)
	}
	return s
}

// appendFrame appends a frame of size random bytes to stream. It appends to want the bytes the
// frame leaves in memory.
func appendFrame(stream, want []byte, kind byte, size int, rnd *rand.Rand) (s, w []byte) {
	if kind == watched {
		size = max(size, watchedLen)
	}
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(rnd.Uint32())
	}
	stream = append(binary.BigEndian.AppendUint16(stream, uint16(size)), kind, 0)
	stream = append(stream, payload...)
	switch kind {
	case summed:
		stream = binary.BigEndian.AppendUint32(stream, sum(payload))
	case dropped:
		return stream, want
	}
	return stream, append(want, payload...)
}

// check reports an error unless m ended the given number of frames, memory equals want, and no
// memory is pinned.
func (m *model) check(tb testing.TB, frames int, want []byte) {
	tb.Helper()
	if m.ends != frames || m.lost != nil || !bytes.Equal(m.region.Bytes()[:len(want)], want) {
		tb.Errorf("%d of %d frames, %v, or other bytes", m.ends, frames, m.lost)
	}
	if pins := m.Planned(); len(pins) > 0 || m.Held().Pins() {
		tb.Errorf("%d pieces are pinned, or %v", len(pins), m.Held())
	}
}

// An ender is a model that calls ended at the end of each frame.
type ender struct {
	*model
	ended func()
}

func (e ender) End(trailer []byte) error {
	e.ended()
	return e.model.End(trailer)
}

// TestFramePinsEnd: the memory of a frame that a read has completed is not pinned any more when the
// frame ends. A later frame of the same read may invalidate the memory, which waits for the pins.
func TestFramePinsEnd(t *testing.T) {
	m := newModel(t, 1<<20)
	stream, want := appendFrame(nil, nil, plain, 2*least, rand.New(rand.NewPCG(1, 2)))
	const come = header + 100
	ends := 0
	m.Wire = ender{m, func() {
		ends++
		for _, pin := range m.Planned() {
			if pin.Pins() {
				t.Error("the memory of the frame is pinned at the end of the frame")
			}
		}
	}}
	_, missing, err := m.Receive(stream[:come], true)
	if err != nil || missing != len(stream)-come {
		t.Fatalf("%d bytes are missing, %v", missing, err)
	}
	var p frameio.Plan
	m.Plan(&p)
	if len(m.Planned()) == 0 || !m.Planned()[0].Pins() {
		t.Fatal("the memory of the frame is not pinned")
	}
	rest := stream[come:]
	for _, place := range p.Frame {
		rest = rest[copy(place, rest):]
	}
	if _, missing, err := m.Landed(&p, missing, 0); err != nil || missing != 0 || ends != 1 {
		t.Errorf("%d bytes are missing, %d ends, %v", missing, ends, err)
	}
	m.check(t, 1, want)
}

// TestModel cuts a stream of frames of every kind at random places. Memory must hold the same bytes
// wherever the stream is cut, for staged, early and predicted frames.
func TestModel(t *testing.T) {
	const frames, room = 250, 16 << 20
	rnd := rand.New(rand.NewPCG(1, 2))
	m := newModel(t, room)
	var stream, want []byte
	for size, kind, i := 20000, byte(0), 0; i < frames; i++ {
		if rnd.IntN(12) == 0 {
			size, kind = rnd.IntN(60000), byte(rnd.IntN(kinds))
		}
		if rnd.IntN(30) == 0 {
			stream, want = appendFrame(stream, want, byte(rnd.IntN(kinds)), rnd.IntN(100), rnd)
			continue
		}
		stream, want = appendFrame(stream, want, kind, size, rnd)
	}
	a, b := testkit.TCPPair(t)
	c := frameio.New(b, m, frameio.Options{})
	defer c.Close()
	c.Start(nil)
	for p := stream; len(p) > 0; {
		n := min(len(p), 1+rnd.IntN(300_000))
		if _, err := a.Write(p[:n]); err != nil {
			t.Fatal(err)
		}
		p = p[n:]
	}
	a.(interface{ CloseWrite() error }).CloseWrite()
	if err := testkit.Await(t, "the end of the stream", m.failed); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	m.check(t, frames, want)
	if c.InPlace() && m.right == 0 {
		t.Error("nothing was read ahead")
	}
}

// FuzzPlacer cuts a stream of frames at any place. Each frame takes four bytes of the input: kind,
// size and a cut.
func FuzzPlacer(f *testing.F) {
	f.Add([]byte{plain, 0, 9, 3, summed, 200, 1, 90, watched, 120, 0, 255, dropped, 90, 0, 7, watched, 0, 3, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		rnd := rand.New(rand.NewPCG(3, 4))
		m := newModel(t, 1<<20)
		var stream, want []byte
		var cuts []int
		frames := 0
		for ; len(in) >= 4 && len(want) < 1<<19; in = in[4:] {
			stream, want = appendFrame(stream, want, in[0]%kinds, int(in[1])<<8|int(in[2]), rnd)
			cuts = append(cuts, max(0, len(stream)-int(in[3])*int(in[3])))
			frames++
		}
		feed(t, m, stream, append(cuts, len(stream)))
		m.check(t, frames, want)
	})
}

// feed passes the stream to m in pieces ending at cuts, as frameio would.
func feed(t *testing.T, m *model, stream []byte, cuts []int) {
	at, missing := 0, 0
	for _, end := range cuts {
		for at < end && missing > 0 {
			var p frameio.Plan
			m.Plan(&p)
			n := 0
			for _, b := range p.Frame {
				n += copy(b, stream[at+n:end])
			}
			var err error
			if _, missing, err = m.Landed(&p, n, 0); err != nil {
				t.Fatal(err)
			}
			at += n
		}
		if at < end && missing == 0 {
			n, k, err := m.Receive(bytes.Clone(stream[at:end]), true)
			if err != nil {
				t.Fatal(err)
			}
			at, missing = at+n, k
		}
	}
}
