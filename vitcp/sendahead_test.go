package vitcp

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestSendsAhead: few reads of the socket place long Sends in their buffers. This holds wherever
// the stream is cut, for Sends as long as the Sends before, longer or shorter, and for buffers of
// one or several segments. A consumer may use the buffer as soon as the receive completes. No byte
// outside the buffer changes. [VIT-2.2.2.2.3-5]
func TestSendsAhead(t *testing.T) {
	const size, margin, bufs = 400_000, 64, 6
	attrs := reliableAll
	attrs.FlowControl = false // so that the probe need not wait until receives are advertised
	s := serveProbe(t, sessionOpts{attrs: attrs, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
	sink, into := register(t, s.n, 500_000, allRights)
	rnd := rand.New(rand.NewPCG(1, 2))
	fill := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	beside := bytes.Repeat([]byte{0xee}, margin)
	number := vitcpwire.Number(0)
	most := 0
	for round := range 15 {
		full := []int{vitcpwire.MaxSegment, 40_000, 20_016}[round%3]
		var stream, response []byte
		usual, done := 100_000+rnd.IntN(300_000), 0
		var mems [][]byte
		wantInto := bytes.Clone(into)
		if round%4 == 3 { // a response comes between the segments
			must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{},
				segment(sink, 0, full-s.d.HeaderLen(vitcpwire.ReadResponse)))))
			x := s.want(vitcpwire.ReadRequest)
			body := fill(full - s.d.HeaderLen(vitcpwire.ReadResponse))
			copy(wantInto, body)
			response = s.bytes(vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: x.h.Number, Flags: vitcpwire.EndOfMessage}, nil, &x.rdma, body)
		}
		for i := range bufs {
			n, step := usual, full-s.d.HeaderLen(vitcpwire.Send)
			switch rnd.IntN(5) {
			case 0:
				n = 1 + rnd.IntN(size)
			case 1: // the last segment has a length that a segment in the middle could have
				n = step * (1 + rnd.IntN(usual/step))
			}
			r, mem := register(t, s.n, size+2*margin, allRights)
			for j := range mem {
				mem[j] = 0xee
			}
			mems = append(mems, mem)
			body := fill(n)
			d := vi.NewRecv(segment(r, margin, size))
			if i == 4 {
				d = vi.NewRecv(segment(r, margin, 90_000), segment(r, margin+90_000, size-90_000))
			}
			d.OnDone = func(d *vi.Descriptor) {
				if d.Status().Err() != nil || int(d.Length) != n || !bytes.Equal(mem[margin:margin+n], body) {
					t.Errorf("round %d: %v, %d bytes of %d, or others", round, d.Status(), d.Length, n)
				}
				clear(mem[margin : margin+size]) // the consumer overwrites the buffer at once
				done++
			}
			must(t, s.v.PostRecv(d))
			number++
			for at := 0; at < n; at += step {
				h := vitcpwire.Header{Type: vitcpwire.Send, Number: number, Offset: uint32(at)}
				if at+step >= n {
					h.Flags = vitcpwire.EndOfMessage
				}
				stream = append(stream, s.bytes(h, nil, nil, body[at:min(at+step, n)])...)
				if response != nil && i > 0 && rnd.IntN(4) == 0 {
					stream = append(stream, response...)
					response = nil
				}
			}
		}
		stream = append(stream, response...)
		l := s.v.Link().(*link)
		number++ // an empty Send ends the round
		must(t, s.v.PostRecv(vi.NewRecv()))
		stream = append(stream, s.bytes(vitcpwire.Header{Type: vitcpwire.Send, Number: number, Flags: vitcpwire.EndOfMessage}, nil, nil, nil)...)
		for len(stream) > 0 {
			k := min(len(stream), 1000+rnd.IntN(500_000))
			s.raw(stream[:k])
			stream = stream[k:]
			for s.v.Poll() {
			}
			l.c.WithReceiver(func() { most = max(most, cap(l.Planned())) })
		}
		for i := range bufs + 1 {
			if d, err := waitRecv(t, s.v); err != nil {
				t.Fatalf("round %d: receive %d: %v, %v", round, i, err, d.Status())
			}
		}
		if round%4 == 3 {
			if d, err := waitSend(t, s.v); err != nil {
				t.Fatalf("round %d: %v, %v", round, err, d.Status())
			}
		}
		if done != bufs {
			t.Fatalf("round %d: %d Sends", round, done)
		}
		for _, mem := range mems {
			if !bytes.Equal(mem[:margin], beside) || !bytes.Equal(mem[margin+size:], beside) {
				t.Fatalf("round %d: bytes beside a buffer were touched", round)
			}
		}
		if !bytes.Equal(into, wantInto) {
			t.Fatalf("round %d: a Read got other bytes", round)
		}
		l.c.WithReceiver(func() {
			if len(l.Planned()) > 0 {
				t.Error("memory is pinned still")
			}
		})
	}
	if most == 0 {
		t.Error("nothing was read ahead")
	}
}

// TestSendEndsSoon: a Send may end earlier than predicted, with a segment like the segments from
// the middle. The bytes then wrongly placed after the Send are moved away before the consumer gets
// the completion and may use the buffer.
func TestSendEndsSoon(t *testing.T) {
	for segments := 1; segments < 7; segments++ {
		attrs := reliableAll
		attrs.FlowControl = false
		s := serveProbe(t, sessionOpts{attrs: attrs, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
		step := 40_000
		full := 8 * step
		rnd := rand.New(rand.NewPCG(3, uint64(segments)))
		var stream []byte
		at := 0 // where the stream pauses, in the first segment of message 3
		for i, n := range []int{full, full, full, segments * step, full} {
			r, mem := register(t, s.n, full, allRights)
			body := make([]byte, n)
			for j := range body {
				body[j] = byte(rnd.Uint32())
			}
			d := vi.NewRecv(segment(r, 0, full))
			d.OnDone = func(d *vi.Descriptor) {
				if d.Status().Err() != nil || int(d.Length) != n || !bytes.Equal(mem[:n], body) {
					t.Errorf("%d segments: message %d: %v, %d bytes of %d, or others", segments,
						i, d.Status(), d.Length, n)
				}
				clear(mem)
			}
			must(t, s.v.PostRecv(d))
			if i == 3 {
				at = len(stream) + step/2
			}
			for o := 0; o < n; o += step {
				h := vitcpwire.Header{Type: vitcpwire.Send, Number: vitcpwire.Number(i + 1), Offset: uint32(o)}
				if o+step == n {
					h.Flags = vitcpwire.EndOfMessage
				}
				stream = append(stream, s.bytes(h, nil, nil, body[o:o+step])...)
			}
		}
		l := s.v.Link().(*link)
		s.raw(stream[:at])
		for l.count.receivedMessages.Load() < 3 || s.v.Poll() { // until the middle of a segment has arrived
			s.v.Poll()
			runtime.Gosched()
		}
		s.raw(stream[at:])
		for i := range 5 {
			if d, err := waitRecv(t, s.v); err != nil {
				t.Fatalf("%d segments: message %d: %v, %v", segments, i, err, d.Status())
			}
		}
	}
}
