package vitcp

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// The whole range of an RDMA Write is checked before its first byte is placed. If the end is out of
// range, the beginning is not written either. [V-42] [VIT-2.2.2.2.2-6]
func TestWriteIsCheckedWhole(t *testing.T) {
	for _, level := range levels {
		s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, level)})
		r, buf := register(t, s.n, 1000, allRights)
		h := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 1001}
		s.last++
		s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last}, &h, bytes.Repeat([]byte{1}, 500))
		if level == vi.UnreliableDelivery {
			s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last, Offset: 500, Flags: vitcpwire.EndOfMessage},
				&h, bytes.Repeat([]byte{1}, 501))
			s.n.expectAsync(t, vi.ErrorRDMAWProt)
		} else {
			s.n.expectAsync(t, vi.ErrorRDMAWProt, vi.ErrorConnLost)
		}
		if bytes.Contains(buf, []byte{1}) {
			t.Errorf("%v: the beginning was placed", level)
		}
	}
}

// Bytes beyond the stated length of an RDMA Write are not placed, although the region has room for
// them. [VIT-3.2.1-4] [V-42]
func TestWriteStaysInItsLength(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll})
	r, buf := register(t, s.n, 1000, allRights)
	h := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 3}
	s.message(vitcpwire.Write, &h, bytes.Repeat([]byte{1}, 10))
	s.wantEnd(errReset)
	if bytes.Contains(buf[3:], []byte{1}) {
		t.Error("bytes beyond the length were placed")
	}
}

// Messages after a refused RDMA Read are not delivered. A Read before it is answered.
// [VIT-3.1-ACK-6] [V-42]
func TestNothingBehindARefusedRead(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll,
		before: func(s *session) { must(t, s.v.PostRecv(vi.NewRecv())) }})
	r, buf := register(t, s.n, 100, allRights)
	fill(buf, 1)
	good := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 100}
	bad := good
	bad.Length = 101
	s.raw(bytes.Join([][]byte{
		s.bytes(vitcpwire.Header{Type: vitcpwire.ReadRequest, Flags: vitcpwire.EndOfMessage, Number: 1},
			nil, &good, nil),
		s.bytes(vitcpwire.Header{Type: vitcpwire.ReadRequest, Flags: vitcpwire.EndOfMessage, Number: 2},
			nil, &bad, nil),
		s.bytes(vitcpwire.Header{Type: vitcpwire.Send, Flags: vitcpwire.EndOfMessage, Number: 3}, nil, nil, nil),
	}, nil))
	if x := s.want(vitcpwire.ReadResponse); x.h.Number != 1 || !bytes.Equal(x.payload, buf) {
		t.Errorf("%v", x.h)
	}
	for _, x := range s.wantEnd(io.EOF) {
		if x.h.Error != 0 && x.h.Ack != 2 || x.h.Error == 0 && !x.h.Ack.Less(2) {
			t.Errorf("%v", x.h)
		}
	}
	if d, _ := waitRecv(t, s.v); d.Status()&vi.StatusFlushed == 0 {
		t.Errorf("%v", d.Status())
	}
}

// A large segment is read straight into place. If a peer sends it slowly and the memory is
// deregistered meanwhile, no later byte is placed. [V-42]
func TestDirectPlacementRespectsDeregistration(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll})
	r, buf := register(t, s.n, 65000, allRights)
	h := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 65000}
	b := s.bytes(vitcpwire.Header{Type: vitcpwire.Write, Number: 1, Flags: vitcpwire.EndOfMessage},
		nil, &h, bytes.Repeat([]byte{1}, 65000))
	s.raw(b[:20000])
	for s.v.Poll() || s.v.Link().(*link).count.receivedSegments.Load() == 0 {
		runtime.Gosched()
	}
	must(t, s.n.DeregisterMem(r))
	clear(buf) // the test may use the memory again
	s.raw(b[20000:])
	s.n.expectAsync(t, vi.ErrorRDMAWProt, vi.ErrorConnLost)
	if bytes.Contains(buf, []byte{1}) {
		t.Error("placed after the memory was given back")
	}
	s.wantEnd(io.EOF)
}

// A VI disconnects in the middle of a message that it sends. The message ends as void, the stream
// stays valid, and no further byte of the VI's memory is sent. [V-18] [V-30]
func TestDisconnectInsideMessage(t *testing.T) {
	s := serveProbe(t, sessionOpts{cfg: drainLong, attrs: reliableAll, posted: 3, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
	r, buf := register(t, s.n, 64<<20, vi.MemAttributes{})
	copy(buf, bytes.Repeat([]byte{1}, len(buf)))
	must(t, s.v.PostSend(vi.NewSend(segment(r, 0, len(buf)))))
	s.want(vitcpwire.Send)
	must(t, s.v.Disconnect())
	if d, _ := waitSend(t, s.v); d.Status()&vi.StatusFlushed == 0 {
		t.Errorf("%v", d.Status())
	}
	copy(buf, bytes.Repeat([]byte{2}, len(buf))) // the test may use the memory again
	segs := s.wantEnd(io.EOF)
	void := false
	for _, x := range segs {
		if bytes.Contains(x.payload, []byte{2}) {
			t.Fatal("memory was read after the descriptor came back")
		}
		void = x.h.Type == vitcpwire.Send &&
			x.h.Flags&(vitcpwire.TransmitError|vitcpwire.EndOfMessage) == vitcpwire.TransmitError|vitcpwire.EndOfMessage
	}
	if !void {
		t.Errorf("ended with %v", segs[len(segs)-1].h)
	}
}

// An idle connection uses little memory: at most 16 KiB for each side.
func TestIdleMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector counts memory otherwise")
	}
	const count = 100
	p := connectPair(t, Config{}, reliableAll)
	measure := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := measure()
	for range count {
		q := &pair{na: p.na, nb: p.nb, a: newVI(t, p.na, reliableAll), b: newVI(t, p.nb, reliableAll)}
		q.connect(t)
	}
	per := int64(measure()-before) / (2 * count)
	t.Logf("%d bytes for each side of a connection", per)
	if per > 16<<10 {
		t.Errorf("%d bytes for each side of an idle connection", per)
	}
}
