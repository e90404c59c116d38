package vitcp

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestAhead: few reads of the socket place long RDMA Writes and Read Responses. This holds wherever
// the stream is cut, whichever message comes next, and for sinks of one or several segments. No
// byte outside the sinks changes. [VIT-2.2.2.2.3-6] [V-42]
func TestAhead(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
	sink, into := register(t, s.n, 400_000, allRights)
	target, written := register(t, s.n, 400_000, allRights)
	rnd := rand.New(rand.NewPCG(1, 2))
	number := vitcpwire.Number(0)
	fill := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	most := 0
	for round := range 30 {
		for i := range into {
			into[i], written[i] = 0xee, 0xee
		}
		wantInto, wantWritten := bytes.Clone(into), bytes.Clone(written)
		full := []int{vitcpwire.MaxSegment, 40000, 65000}[round%3]
		cut := func(typ vitcpwire.Type, number vitcpwire.Number, r *vitcpwire.RDMA, body []byte) (segs [][]byte) {
			n := full - s.d.HeaderLen(typ)
			for at := 0; at < len(body); at += n {
				h := vitcpwire.Header{Type: typ, Number: number, Offset: uint32(at)}
				if at+n >= len(body) {
					h.Flags = vitcpwire.EndOfMessage
				}
				segs = append(segs, s.bytes(h, nil, r, body[at:min(at+n, len(body))]))
			}
			return segs
		}
		var responses, writes [][]byte
		at := 64
		for i, n := range []int{150_000, 70_001, 9_000, 100_000} {
			d := vi.NewRDMARead(vi.RemoteSegment{}, segment(sink, at, n))
			if (i+round)%4 == 1 {
				d = vi.NewRDMARead(vi.RemoteSegment{}, segment(sink, at, n/3), segment(sink, at+n/3, n-n/3))
			}
			must(t, s.v.PostSend(d))
			x := s.want(vitcpwire.ReadRequest)
			body := fill(n)
			copy(wantInto[at:], body)
			responses = append(responses, cut(vitcpwire.ReadResponse, x.h.Number, &x.rdma, body)...)
			at += n + 64
		}
		at = 64
		for _, n := range []int{200_000, 65_000, 100_000} {
			body := fill(n)
			copy(wantWritten[at:], body)
			number++
			r := vitcpwire.RDMA{Address: target.Address() + uint64(at), Handle: uint32(target.Handle()),
				Length: uint32(n)}
			writes = append(writes, cut(vitcpwire.Write, number, &r, body)...)
			at += n + 64
		}
		var stream []byte
		for len(responses)+len(writes) > 0 {
			from := &responses
			if len(responses) == 0 || len(writes) > 0 && rnd.IntN(1+round%3) > 0 {
				from = &writes
			}
			stream = append(stream, (*from)[0]...)
			*from = (*from)[1:]
			if rnd.IntN(8) == 0 {
				stream = append(stream, s.bytes(vitcpwire.Header{Type: vitcpwire.NOP}, nil, nil, nil)...)
			}
		}
		l := s.v.Link().(*link)
		read := l.count.receivedBytes.Load()
		for len(stream) > 0 {
			k := min(len(stream), 1000+rnd.IntN(500_000))
			s.raw(stream[:k])
			stream = stream[k:]
			for s.v.Poll() {
			}
			l.c.WithReceiver(func() { most = max(most, cap(l.Planned())) })
		}
		for range 4 {
			d, err := waitSend(t, s.v)
			if err != nil || d.Status().Err() != nil {
				t.Fatalf("round %d: %v, %v", round, err, d.Status())
			}
		}
		for l.count.receivedBytes.Load() < read+150_000+70_001+9_000+100_000+200_000+65_000+100_000 {
			s.v.Poll()
			runtime.Gosched()
		}
		l.c.WithReceiver(func() {
			if len(l.Planned()) > 0 {
				t.Error("memory is pinned still")
			}
		})
		if !bytes.Equal(into, wantInto) || !bytes.Equal(written, wantWritten) {
			t.Fatalf("round %d: other bytes, or in other places", round)
		}
	}
	if most < 2 {
		t.Errorf("at most %d pieces of memory were read to ahead", most)
	}
}
