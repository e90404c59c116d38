package vitcp

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestAheadGuarded: no bytes are predicted into a region whose memory may fault, unless the
// consumer accepts that a fault ends the connection. A pin ends with the message for which it was
// taken. So the region can be deregistered after writes, reads and sends. [VIA-8.3-16]
func TestAheadGuarded(t *testing.T) {
	const size = 300_000
	guarded := allRights
	guarded.Guarded = true
	breaks := guarded
	breaks.FaultBreaks = true
	for name, begin := range map[string]func(t *testing.T, s *session, r *vi.Region) (vitcpwire.Header, *vitcpwire.RDMA){
		"Write": func(t *testing.T, s *session, r *vi.Region) (vitcpwire.Header, *vitcpwire.RDMA) {
			return vitcpwire.Header{Type: vitcpwire.Write, Number: 1},
				&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: size}
		},
		"Read Response": func(t *testing.T, s *session, r *vi.Region) (vitcpwire.Header, *vitcpwire.RDMA) {
			must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, size))))
			x := s.want(vitcpwire.ReadRequest)
			return vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: x.h.Number}, &x.rdma
		},
		"Send": func(t *testing.T, s *session, r *vi.Region) (vitcpwire.Header, *vitcpwire.RDMA) {
			must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, size))))
			// This makes the receive role predict a Send of the same length.
			s.v.Link().(*link).c.WithReceiver(func() { s.v.Link().(*link).lastSend = size })
			return vitcpwire.Header{Type: vitcpwire.Send, Number: 1}, nil
		},
	} {
		for _, attrs := range []vi.MemAttributes{guarded, breaks} {
			t.Run(fmt.Sprintf("%s, breaks %t", name, attrs.FaultBreaks), func(t *testing.T) {
				s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
				r, buf := register(t, s.n, size, attrs)
				h, rdma := begin(t, s, r)
				body := bytes.Repeat([]byte{7}, size)
				n := vitcpwire.MaxSegment - s.d.HeaderLen(h.Type)
				l := s.v.Link().(*link)
				segments := l.count.receivedSegments.Load()
				for at := 0; at < size; at += n {
					h.Offset = uint32(at)
					if at+n >= size {
						h.Flags = vitcpwire.EndOfMessage
					}
					seg := s.bytes(h, nil, rdma, body[at:min(at+n, size)])
					s.raw(seg[:len(seg)/2])
					segments++ // the rest is read straight into place
					for end := testContext(t); l.count.receivedSegments.Load() < segments && l.c.InPlace(); s.v.Poll() {
						must(t, end.Err())
					}
					s.raw(seg[len(seg)/2:])
				}
				for end := testContext(t); l.count.receivedBytes.Load() < size; s.v.Poll() {
					must(t, end.Err())
					runtime.Gosched()
				}
				deregister(t, s.n, r).wait()
				if !bytes.Equal(buf, body) {
					t.Error("other bytes")
				}
				l.c.WithReceiver(func() {
					if ahead := cap(l.Planned()) > 1; ahead != (attrs.FaultBreaks && l.c.InPlace()) {
						t.Errorf("read ahead: %t", ahead)
					}
				})
			})
		}
	}
}
