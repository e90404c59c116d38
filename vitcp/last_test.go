package vitcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestLastBytes: if the kernel places an RDMA Write, its last bytes are placed after all others, at
// whatever byte the stream pauses. [VIA-4.2-5]
func TestLastBytes(t *testing.T) {
	const size = 181_000 // so long that the last segment is read straight into place
	for _, short := range []int{1, 7, 8, 9, 100} {
		s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
		r, buf := register(t, s.n, size, allRights)
		l := s.v.Link().(*link)
		body := bytes.Repeat([]byte{7}, size)
		rdma := &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: size}
		h := vitcpwire.Header{Type: vitcpwire.Write}
		for message := range 3 { // the second and third message are predicted
			clear(buf)
			h.Number, h.Flags = vitcpwire.Number(message+1), 0
			n := vitcpwire.MaxSegment - s.d.HeaderLen(h.Type)
			var stream []byte
			for at := 0; at < size; at += n {
				h.Offset = uint32(at)
				if at+n >= size {
					h.Flags = vitcpwire.EndOfMessage
				}
				stream = append(stream, s.bytes(h, nil, rdma, body[at:min(at+n, size)])...)
			}
			taken := func(want uint64) {
				t.Helper()
				for end := testContext(t); l.count.receivedMessages.Load() != want; s.v.Poll() {
					must(t, end.Err())
				}
			}
			placed := func(n int) { // waits until n bytes are in place
				t.Helper()
				for there, end := false, testContext(t); !there; s.v.Poll() {
					must(t, end.Err())
					l.c.WithReceiver(func() { there = buf[n-1] != 0 })
				}
			}
			last := len(stream) - 10_000
			s.raw(stream[:last])
			placed(size - 10_000)
			s.raw(stream[last : len(stream)-short])
			placed(size - max(short, 8))
			l.c.WithReceiver(func() {
				for i, b := range buf[size-8:] {
					if b != 0 {
						t.Errorf("message %d, %d bytes to come: byte %d of the last 8 is there", message, short, i)
						break
					}
				}
			})
			s.raw(stream[len(stream)-short:])
			taken(uint64(message + 1))
			if !bytes.Equal(buf, body) {
				t.Fatalf("message %d, %d bytes late: other bytes", message, short)
			}
		}
	}
}

// TestLastBytesCut: the stream ends before the last bytes of an RDMA Write, or before its last
// segment. A message is then lost, even if all other bytes are in place. The end is therefore not
// orderly, and the consumer gets an error for the Write. [VIA-4.6-11] [VIA-5.2-7] [V-17]
func TestLastBytesCut(t *testing.T) {
	const size = 181_000
	const segment = -1
	for _, short := range []int{1, 7, 8, 9, 5000, segment} {
		for before := range 3 { // complete Writes before the torn one, after which it is predicted
			causes := make(chan error, 1)
			cfg := Config{Broken: func(_ *vi.VI, err error) { causes <- err }}
			s := serveProbe(t, sessionOpts{cfg: cfg, attrs: reliableAll,
				ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
			r, _ := register(t, s.n, size, allRights)
			l := s.v.Link().(*link)
			rdma := &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: size}
			body := make([]byte, size)
			n := vitcpwire.MaxSegment - s.d.HeaderLen(vitcpwire.Write)
			for message := range before + 1 {
				h := vitcpwire.Header{Type: vitcpwire.Write, Number: vitcpwire.Number(message + 1)}
				var stream []byte
				for at := 0; at < size; at += n {
					h.Offset = uint32(at)
					if at+n >= size {
						h.Flags = vitcpwire.EndOfMessage
					}
					stream = append(stream, s.bytes(h, nil, rdma, body[at:min(at+n, size)])...)
				}
				switch {
				case message < before:
				case short == segment:
					stream = stream[:len(stream)-s.d.HeaderLen(vitcpwire.Write)-size%n]
				default:
					stream = stream[:len(stream)-short]
				}
				s.raw(stream[:len(stream)-10_000])
				for s.v.Poll() {
				}
				s.raw(stream[len(stream)-10_000:])
				for end := testContext(t); message < before &&
					l.count.receivedMessages.Load() != uint64(message+1); s.v.Poll() {
					must(t, end.Err())
				}
			}
			for s.v.Poll() {
			}
			must(t, s.nc.(*net.TCPConn).CloseWrite())
			s.v.Unpoll()
			if err := <-causes; !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d bytes missing behind %d Writes: cause %v", short, before, err)
			}
			if d := <-s.n.async; d.Code != vi.ErrorRDMAWAbort {
				t.Errorf("%d bytes missing behind %d Writes: error %v", short, before, d.Code)
			}
		}
	}
}

// The stream ends when all bytes of the segment except the last ones are placed. Then no byte of
// the segment is staged or awaited in place, but the Write fails as in TestLastBytesCut.
// [VIA-4.6-11] [V-17]
func TestLastBytesDue(t *testing.T) {
	const size = 60_000
	causes := make(chan error, 1)
	cfg := Config{Broken: func(_ *vi.VI, err error) { causes <- err }}
	s := serveProbe(t, sessionOpts{cfg: cfg, attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
	r, _ := register(t, s.n, size, allRights)
	l := s.v.Link().(*link)
	rdma := &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: size}
	stream := s.bytes(vitcpwire.Header{Type: vitcpwire.Write, Number: 1, Flags: vitcpwire.EndOfMessage},
		nil, rdma, make([]byte, size))
	s.raw(stream[:20_000])
	for begun, end := false, testContext(t); !begun; s.v.Poll() {
		must(t, end.Err())
		l.c.WithReceiver(func() { begun = l.Open() })
	}
	s.raw(stream[20_000 : len(stream)-8])
	for due, end := false, testContext(t); !due; s.v.Poll() {
		must(t, end.Err())
		l.c.WithReceiver(func() { due = l.Open() && l.Missing() == 0 })
	}
	must(t, s.nc.(*net.TCPConn).CloseWrite())
	s.v.Unpoll()
	if err := <-causes; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cause %v", err)
	}
	s.n.expectAsync(t, vi.ErrorRDMAWAbort, vi.ErrorConnLost)
}
