package fcip

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"viaduct/internal/fc"
)

// middle returns a frame from the middle of a sequence.
func middle(opt int) *fc.Frame {
	f := &fc.Frame{SOF: fc.SOFn3, EOF: fc.EOFn, Header: fc.Header{RCtl: 0x04, DID: 0x010201, SID: 0x010101,
		Type: fc.TypeFCVI, FCtl: 0x210000, SeqID: 5, SeqCnt: 0xFFFD, OXID: 5, RXID: fc.Unassigned, Param: 1 << 20}}
	if opt > 0 {
		f.DFCtl = map[int]uint8{16: 1, 32: 2}[opt]
		f.Opt = bytes.Repeat([]byte{0xAB}, opt)
	}
	return f
}

// TestSendRun: on the wire the frames of a run equal frames sent one by one.
func TestSendRun(t *testing.T) {
	for _, opt := range []int{0, 16, 32} {
		for _, size := range []int{1, 2, 3, 4, 100, 2080} {
			for _, frames := range []int{1, 2, runLock, 2*runLock + 3} {
				for _, sof := range []fc.SOF{fc.SOFi3, fc.SOFn3} {
					data := make([]byte, size*frames)
					for i := range data {
						data[i] = byte(i * 7)
					}
					x, y := &Link{pend: make([]byte, 0, slabSize)}, &Link{pend: make([]byte, 0, slabSize)}
					f, g := middle(opt), middle(opt)
					f.SOF, g.SOF = sof, sof
					x.SendRun(f, size, data)
					for rest := data; len(rest) > 0; rest = rest[size:] {
						g.Payload = rest[:size]
						y.Send(g)
						g.Next(size)
					}
					if !bytes.Equal(x.pend, y.pend) || f.Header != g.Header || x.Stats() != y.Stats() {
						t.Errorf("%d frames of %d bytes behind %d, %v: they differ", frames, size, opt, sof)
					}
				}
			}
		}
	}
	x := &Link{pend: make([]byte, 0, 3*MaxLen)}
	x.SendRun(middle(32), 2080, make([]byte, 4*2080))
	if s := x.Stats(); s.Overflow != 4 || len(x.pend) > 0 {
		t.Errorf("a run without room: %+v", s)
	}
}

// A runner is a device that accepts runs. A test can make the runner refuse a frame of a run.
type runner struct {
	sink
	runs   bool
	next   *fc.Frame // expected header of the next frame in the run
	refuse int       // index, from 1, of the frame to refuse; 0 refuses none
	got    []string
	taken  int
}

func (r *runner) Frames(recv func(func(*fc.Frame))) {
	recv(func(f *fc.Frame) {
		r.note(f, f.Payload)
		if r.runs && f.SOF.Class() == fc.Class3 {
			f.Taker = r
			r.next = new(fc.Frame)
			f.CloneTo(r.next, nil)
			r.next.Next(len(f.Payload))
		}
	})
}

func (r *runner) note(f *fc.Frame, payload []byte) {
	g := *f
	g.Payload = payload
	r.got = append(r.got, fmt.Sprintf("%s %x %x", g.String(), g.Opt, payload))
}

func (r *runner) Take(b []byte) bool {
	if r.refuse--; r.refuse == 0 {
		return false
	}
	r.note(r.next, b)
	r.next.Next(len(b))
	r.taken++
	return true
}

// TestFollow: a device that accepts runs receives the same frames as a device without runs,
// whatever frame follows another. [FCVI-3-1] [FCFS-2.1-6]
func TestFollow(t *testing.T) {
	const size, frames = 40, 6
	wire := func() (b []byte) {
		f := middle(32)
		f.SOF = fc.SOFi3
		for i := range frames {
			f.Payload = bytes.Repeat([]byte{byte(i)}, size)
			if i == frames-1 {
				f.FCtl |= fc.FCtlEndSeq
				f.EOF = fc.EOFt
			}
			b = Append(b, f)
			f.Next(size)
		}
		return b
	}()
	one := len(wire) / frames
	feed := func(b []byte, runs bool, refuse int) (*runner, string) {
		r := &runner{sink: *newSink(), runs: runs, refuse: refuse}
		l := &Link{dev: r}
		l.feed = l.each
		n, _, err := (*protocol)(l).Receive(b, true)
		return r, fmt.Sprint(n, err, l.Stats())
	}
	same := func(what string, b []byte, refuse int) (taken int) {
		t.Helper()
		x, sx := feed(b, false, 0)
		y, sy := feed(b, true, refuse)
		if !slices.Equal(x.got, y.got) || sx != sy {
			t.Errorf("%s: without runs %s, with them %s:\n%q\n%q", what, sx, sy, x.got, y.got)
		}
		return y.taken
	}
	if n := same("nothing wrong", wire, 0); n != frames-2 {
		t.Errorf("%d taken", n)
	}
	for n := range wire {
		same(fmt.Sprintf("the first %d bytes", n), wire[:n], 0)
	}
	for n := range frames {
		same(fmt.Sprintf("number %d refused", n), wire, n)
		for at := range one { // each byte of a frame is changed; the CRC is corrected where that matters
			for _, seal := range []bool{false, true} {
				bad := bytes.Clone(wire)
				b := bad[n*one : (n+1)*one]
				b[at] ^= 1
				if seal {
					fc.Seal(b[offFrame : one-delimLen])
				}
				same(fmt.Sprintf("byte %d of frame %d broken, sealed %v", at, n, seal), bad, 0)
			}
		}
		same(fmt.Sprintf("frame %d missing", n), slices.Delete(bytes.Clone(wire), n*one, (n+1)*one), 0)
		same(fmt.Sprintf("frame %d twice", n), slices.Insert(bytes.Clone(wire), n*one, wire[n*one:(n+1)*one]...), 0)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 { // frames in random order
		b := []byte(nil)
		for range 12 {
			n := rng.IntN(frames)
			b = append(b, wire[n*one:(n+1)*one]...)
		}
		same(fmt.Sprintf("shuffle %d", i), b, rng.IntN(8))
	}
}
