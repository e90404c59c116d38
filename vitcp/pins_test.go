package vitcp

import (
	"bytes"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A deregistration is a DeregisterMem in progress.
type deregistration struct {
	t    testing.TB
	done chan error
}

// deregister starts to deregister r in another goroutine, and waits until the handle is invalid.
func deregister(t testing.TB, n *nicUnderTest, r *vi.Region) *deregistration {
	d := &deregistration{t, make(chan error, 1)}
	go func() { d.done <- n.DeregisterMem(r) }()
	for {
		if _, err := n.QueryMem(r); err != nil {
			return d
		}
		runtime.Gosched()
	}
}

func (d *deregistration) wait() {
	d.t.Helper()
	select {
	case err := <-d.done:
		must(d.t, err)
	case <-time.After(patience):
		d.t.Fatal("DeregisterMem waits for a pin that is not given back")
	}
}

// All accesses to a region during a Receive share a pin. Deregistration waits for the pin. Later
// messages for the region are refused although the region is still pinned. The pin ends with the
// Receive. [V-42] [VIA-8.3-16]
func TestPinOfOneReceive(t *testing.T) {
	var dereg *deregistration
	began := false
	s := serveProbe(t, sessionOpts{attrs: reliableAll})
	r, buf := register(t, s.n, 100, allRights)
	mark := vi.NewRecv()
	ready := make(chan struct{})
	mark.OnDone = func(*vi.Descriptor) { // runs between the two Writes
		dereg = deregister(t, s.n, r)
		began = len(dereg.done) > 0
		close(ready)
	}
	must(t, s.v.PostRecv(mark))
	first := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 50}
	second := first
	second.Address += 50
	ones := bytes.Repeat([]byte{1}, 50)
	end := vitcpwire.EndOfMessage
	s.raw(slices.Concat(
		s.bytes(vitcpwire.Header{Type: vitcpwire.Write, Flags: end, Number: 1}, nil, &first, ones),
		s.bytes(vitcpwire.Header{Type: vitcpwire.Send, Flags: end, Number: 2}, nil, nil, nil),
		s.bytes(vitcpwire.Header{Type: vitcpwire.Write, Flags: end, Number: 3}, nil, &second, ones),
	))
	s.n.expectAsync(t, vi.ErrorRDMAWProt, vi.ErrorConnLost)
	<-ready
	if began {
		t.Error("DeregisterMem did not wait for the Receive")
	}
	dereg.wait()
	if !bytes.Equal(buf[:50], ones) || bytes.Contains(buf[50:], []byte{1}) {
		t.Errorf("%v", buf)
	}
	s.wantEnd(io.EOF)
}

// Between two Receives no memory is pinned. So memory just used by short messages can be
// deregistered at once, and the next message to the memory fails. [V-42]
func TestNoPinBetweenReceives(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll})
	r, buf := register(t, s.n, 100, allRights)
	h := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 100}
	must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 100))))
	s.message(vitcpwire.Write, &h, bytes.Repeat([]byte{1}, 100))
	s.message(vitcpwire.Send, nil, bytes.Repeat([]byte{1}, 100))
	_, err := waitRecv(t, s.v)
	must(t, err)
	deregister(t, s.n, r).wait()
	clear(buf) // the test may use the memory again
	s.message(vitcpwire.Write, &h, bytes.Repeat([]byte{1}, 100))
	s.n.expectAsync(t, vi.ErrorRDMAWProt, vi.ErrorConnLost)
	if bytes.Contains(buf, []byte{1}) {
		t.Error("placed after the memory was given back")
	}
	s.wantEnd(io.EOF)
}

// A kept pin does not extend the rights of a message. Rights and bounds are checked for each
// message, and another handle means another region.
func TestHeldPinGrantsNothing(t *testing.T) {
	for name, change := range map[string]func(*session, *vi.Region, *vitcpwire.RDMA){
		"bounds": func(_ *session, _ *vi.Region, h *vitcpwire.RDMA) { h.Address += 51 },
		"below":  func(_ *session, _ *vi.Region, h *vitcpwire.RDMA) { h.Address-- },
		"handle": func(_ *session, _ *vi.Region, h *vitcpwire.RDMA) { h.Handle++ },
		"rights": func(s *session, r *vi.Region, _ *vitcpwire.RDMA) {
			must(s.t, s.n.SetMemAttributes(r, vi.MemAttributes{EnableRDMARead: true}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveProbe(t, sessionOpts{attrs: reliableAll})
			r, buf := register(t, s.n, 100, allRights)
			first := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 50}
			second := first
			mark := vi.NewRecv()
			mark.OnDone = func(*vi.Descriptor) {
				var unused vitcpwire.RDMA
				change(s, r, &unused)
			}
			if name == "rights" {
				must(t, s.v.PostRecv(mark))
			} else {
				must(t, s.v.PostRecv(vi.NewRecv()))
				change(s, r, &second)
			}
			end := vitcpwire.EndOfMessage
			s.raw(slices.Concat(
				s.bytes(vitcpwire.Header{Type: vitcpwire.Write, Flags: end, Number: 1}, nil,
					&first, bytes.Repeat([]byte{1}, 50)),
				s.bytes(vitcpwire.Header{Type: vitcpwire.Send, Flags: end, Number: 2}, nil, nil, nil),
				s.bytes(vitcpwire.Header{Type: vitcpwire.Write, Flags: end, Number: 3}, nil,
					&second, bytes.Repeat([]byte{2}, 50)),
			))
			s.n.expectAsync(t, vi.ErrorRDMAWProt, vi.ErrorConnLost)
			if bytes.Contains(buf, []byte{2}) {
				t.Error("placed all the same")
			}
			s.wantEnd(io.EOF)
		})
	}
}

// The peer does not read, so short messages wait. Their memory can be deregistered, because the
// bytes are copied at once or on demand. [VIA-8.3-16]
func TestDeregisterBehindAFullSocket(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, vi.ReliableDelivery)})
	r, buf := register(t, s.n, 2000, vi.MemAttributes{})
	for i := range buf {
		buf[i] = 0x55
	}
	const count = 40000 // more messages than the sockets hold
	var ds []*vi.Descriptor
	for i := range count { // some are copied at once, the others are referenced
		ds = append(ds, vi.NewRDMAWrite(vi.RemoteSegment{Handle: 1}, segment(r, 0, 1000+i%2*1000)))
	}
	for len(ds) > 0 {
		k := min(len(ds), 1000)
		if _, err := s.v.PostSends(ds[:k]); err != nil {
			t.Fatal(err)
		}
		ds = ds[k:]
	}
	deregister(t, s.n, r).wait()
	for i := range buf {
		buf[i] = 0xaa // the test may use the memory again
	}
	// The last message ends the connection when all other messages were sent, because the memory is
	// not registered.
	s.v.PostSend(vi.NewRDMAWrite(vi.RemoteSegment{Handle: 1}, segment(r, 0, 1)))
	for _, x := range s.wantEnd(io.EOF) {
		if bytes.Contains(x.payload, []byte{0xaa}) {
			t.Fatal("memory was read after it was given back")
		}
	}
}

// The last bytes of an RDMA Write are placed after the others. Their pin is released even if no
// byte follows on the stream. [V-42] [VIA-8.3-16]
func TestPinOfLastBytes(t *testing.T) {
	const size = 181_000 // so long that the last segment is read straight into place
	for _, short := range []int{1, 9, 5000} {
		s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
		r, buf := register(t, s.n, size, allRights)
		l := s.v.Link().(*link)
		body := bytes.Repeat([]byte{7}, size)
		rdma := &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: size}
		n := vitcpwire.MaxSegment - s.d.HeaderLen(vitcpwire.Write)
		var stream []byte
		last := 0 // start of the last segment
		for at := 0; at < size; at += n {
			h := vitcpwire.Header{Type: vitcpwire.Write, Number: 1, Offset: uint32(at)}
			if at+n >= size {
				h.Flags, last = vitcpwire.EndOfMessage, len(stream)
			}
			stream = append(stream, s.bytes(h, nil, rdma, body[at:min(at+n, size)])...)
		}
		send := func(p []byte, upTo int) { // sends p, and waits until the byte before upTo is placed
			t.Helper()
			s.raw(p)
			for end := testContext(t); ; s.v.Poll() {
				there := false
				l.c.WithReceiver(func() { there = buf[upTo-1] != 0 })
				if there {
					return
				}
				must(t, end.Err())
			}
		}
		send(stream[:last], size/n*n)
		send(stream[last:len(stream)-10_000], size-10_000)
		send(stream[len(stream)-10_000:len(stream)-short], size-max(short, 8))
		send(stream[len(stream)-short:], size)
		deregister(t, s.n, r).wait()
		if !bytes.Equal(buf, body) {
			t.Errorf("%d bytes late: other bytes", short)
		}
	}
}
