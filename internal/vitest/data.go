package vitest

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"viaduct/vi"
)

// segments returns n bytes of a side's memory, from off on, as segments of the given sizes in turn.
// A gap of one byte precedes each segment, so that segments start at all alignments.
func (p *pair) segments(side, off, n int, sizes ...int) (segs []vi.Segment) {
	for i := 0; n > 0; i++ {
		k := min(sizes[i%len(sizes)], n)
		off++
		segs = append(segs, p.seg(side, off, k))
		off += k
		n -= k
	}
	return segs
}

// bytesOf returns the bytes of segs, joined.
func (p *pair) bytesOf(side int, segs []vi.Segment) []byte {
	var b []byte
	for _, s := range segs {
		off := s.Address - p.mem[side].Address()
		b = append(b, p.mem[side].Bytes()[off:off+uint64(s.Length)]...)
	}
	return b
}

// testSizes sends and writes messages of boundary sizes, for example 0, 1 and the MTU. Each message
// is gathered from, and scattered to, pieces of odd sizes. [VIA-8.3-11] [VIA-3.5-7] [VIA-3.5-3]
// [VIA-3.5-5] [VIA-4.1-1] [VIA-4.2-1]
func testSizes(e *env) {
	p := e.connected()
	mtu := int(p.mtu())
	for i, n := range []int{0, 1, 2, 3, 7, 64, 1023, 1448, 4096, 4097, mtu - 1, mtu} {
		for k, sizes := range [][]int{{mtu}, {1, 2, 3}, {4096, 1, 0, 1000}, {33, 4095}} {
			if n/slicesMean(sizes) > 200 {
				continue // that would be more segments than a descriptor can have
			}
			seed := uint64(100*i + k)
			clear(p.mem[1].Bytes())
			src := p.segments(0, 3*i+k, n, sizes...)
			p.fill(0, 0, memSize/2, seed)
			dst := p.segments(1, 5*i+k, n+5, sizes[len(sizes)-1], max(1, sizes[0]))
			if len(dst) > 250 {
				dst = p.segments(1, 5*i+k, n+5, n/100+1)
			}
			r := p.postRecv(1, vi.NewRecv(dst...))
			s := p.post(0, vi.NewSend(src...))
			p.wantStatus("send", p.reapSend(p.v[0], s), vi.StatusOpSend)
			p.wantStatus("receive", p.reapRecv(p.v[1], r), vi.StatusOpReceive)
			if int(r.Length) != n || int(s.Length) != n {
				e.Fatalf("message of %d bytes: sent %d, received %d", n, s.Length, r.Length)
			}
			if got, want := p.bytesOf(1, dst), p.bytesOf(0, src); !bytes.Equal(got[:n], want) || !isZero(got[n:]) {
				e.wrongf("message of %d bytes in segments of %v came wrong", n, sizes)
			}

			// An RDMA Write moves the same bytes to a contiguous range at an odd address. The Send
			// after the Write signals the arrival.
			clear(p.mem[1].Bytes())
			at := 100 + 7*i + k
			w := p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(at), src...))
			p.barrier(0)
			p.wantStatus("write", p.reapSend(p.v[0], w), vi.StatusOpRDMAWrite)
			p.wantStatus("barrier", p.reapSend(p.v[0], nil), vi.StatusOpSend)
			there := p.mem[1].Bytes()
			if int(w.Length) != n || !bytes.Equal(there[at:at+n], p.bytesOf(0, src)) ||
				!isZero(there[:at]) || !isZero(there[at+n:]) {
				e.wrongf("write of %d bytes in segments of %v came wrong", n, sizes)
			}
		}
	}
}

func slicesMean(sizes []int) int {
	n := 0
	for _, s := range sizes {
		n += s
	}
	return max(1, n/len(sizes))
}

func isZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// barrier sends an empty message from side from and receives the message at the other side, so that
// all earlier messages have arrived. It returns the send, for the caller to reap.
func (p *pair) barrier(from int) *vi.Descriptor {
	p.Helper()
	r := p.postRecv(1-from, vi.NewRecv())
	s := p.post(from, vi.NewSend())
	p.wantStatus("barrier", p.reapRecv(p.v[1-from], r), vi.StatusOpReceive)
	return s
}

// testSegments: a descriptor may have any number of segments up to the limit, and empty segments.
// [VIA-3.4-1] [VIA-3.4-2] [VIA-3.4-3] [VIA-3.4-4] [VIA-3.5-4]
func testSegments(e *env) {
	p := e.connected()
	most := e.nics[0].Query().MaxSegmentsPerDesc
	for _, n := range []int{0, 1, 2, most - 1, most} {
		var src, dst []vi.Segment
		p.fill(0, 0, 2*most, uint64(n))
		for i := range n {
			src = append(src, p.seg(0, 2*i, 1))
			dst = append(dst, p.seg(1, 3*i, 1))
		}
		r := vi.NewRecv(dst...)
		r.Length = 77 // the Length of a receive is only a convention
		p.postRecv(1, r)
		p.post(0, vi.NewSend(src...))
		p.wantStatus(fmt.Sprint("send of ", n, " segments"), p.reapSend(p.v[0], nil), vi.StatusOpSend)
		p.wantStatus("receive", p.reapRecv(p.v[1], r), vi.StatusOpReceive)
		if int(r.Length) != n || !bytes.Equal(p.bytesOf(1, dst), p.bytesOf(0, src)) {
			e.wrongf("%d segments came wrong", n)
		}
		if n < most { // the address segment counts as a segment
			w := p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(4000), src...))
			p.barrier(0)
			p.wantStatus("write", p.reapSend(p.v[0], w), vi.StatusOpRDMAWrite)
			p.wantStatus("barrier", p.reapSend(p.v[0], nil), vi.StatusOpSend)
			if !bytes.Equal(p.mem[1].Bytes()[4000:][:n], p.bytesOf(0, src)) {
				e.wrongf("write of %d segments came wrong", n)
			}
		}
	}
	// An empty segment needs no valid handle.
	none := vi.Segment{Address: 12345, Handle: 0, Length: 0}
	p.fill(0, 0, 20, 9)
	r := p.postRecv(1, vi.NewRecv(none, p.seg(1, 0, 10), none, p.seg(1, 10, 10), none))
	p.post(0, vi.NewSend(none, none, p.seg(0, 0, 20), none))
	p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	p.wantStatus("receive", p.reapRecv(p.v[1], r), vi.StatusOpReceive)
	if !bytes.Equal(p.mem[1].Bytes()[:20], p.mem[0].Bytes()[:20]) {
		e.wrongf("message with empty segments came wrong")
	}
	r = p.postRecv(1, vi.NewRecv())
	p.post(0, vi.NewSend(none))
	p.wantStatus("empty send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	p.wantStatus("empty receive", p.reapRecv(p.v[1], r), vi.StatusOpReceive)
	// RDMA operations of 0 bytes succeed.
	p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0)))
	p.wantStatus("empty write", p.reapSend(p.v[0], nil), vi.StatusOpRDMAWrite)
	if e.canRead() {
		p.post(0, vi.NewRDMARead(p.mem[1].Remote(0), none))
		p.wantStatus("empty read", p.reapSend(p.v[0], nil), vi.StatusOpRDMARead)
	}
	p.works()
}

// testImmediate: immediate data reaches the receive descriptor the message consumes. [VIA-8.3-12]
// [VIA-3.6-2] [VIA-3.6-3] [VIA-3.3-3] [VIA-3.2-2] [VIA-3.5-6] [VIA-4.2-2] [VIA-4.2-3] [VIA-4.2-4]
func testImmediate(e *env) {
	p := e.connected()
	values := []uint32{0, 1, 0xffffffff, 0x80000000, 0x7fffffff, 0x01020304, 0xdeadbeef}
	for i := range 32 {
		values = append(values, 1<<i)
	}
	for i, x := range values {
		r := vi.NewRecv(p.seg(1, 0, 64))
		r.Control |= vi.Immediate | vi.QueueFence // these bits have no meaning for a receive
		r.ImmediateData = 0x55555555
		p.postRecv(1, r)
		var s *vi.Descriptor
		switch i % 3 {
		case 0:
			s = vi.NewSend().WithImmediate(x)
		case 1:
			s = vi.NewSend(p.seg(0, 0, 64)).WithImmediate(x)
		case 2:
			s = vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, 64)).WithImmediate(x)
		}
		p.post(0, s)
		p.reapSend(p.v[0], s)
		got := p.reapRecv(p.v[1], r)
		if got.Failed() {
			e.Fatalf("immediate data %#x: status %v", x, got)
		}
		if got&vi.StatusImmediate == 0 || r.ImmediateData != x {
			e.wrongf("immediate data %#x came as %#x, status %v", x, r.ImmediateData, got)
		}
	}
	// If a message has no immediate data, ImmediateData of the receive is 0.
	r := vi.NewRecv(p.seg(1, 0, 64))
	r.ImmediateData = 0x55555555
	p.postRecv(1, r)
	p.post(0, vi.NewSend(p.seg(0, 0, 10)))
	p.reapSend(p.v[0], nil)
	got := p.reapRecv(p.v[1], r)
	if got.Failed() {
		e.Fatalf("no immediate data: status %v", got)
	}
	if got&vi.StatusImmediate != 0 || r.ImmediateData != 0 {
		e.wrongf("no immediate data came as %#x, status %v", r.ImmediateData, got)
	}
	// An RDMA Write with immediate data consumes one receive and does not access the receive's
	// memory. A Write without immediate data consumes no receive. When the receive completes, all
	// earlier messages have arrived.
	clear(p.mem[1].Bytes())
	first := p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
	second := p.postRecv(1, vi.NewRecv(p.seg(1, 100, 100)))
	p.fill(0, 0, 4096, 3)
	p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(1000), p.seg(0, 0, 1000)))
	p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(2000), p.seg(0, 1000, 1000)).WithImmediate(7))
	p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(3000), p.seg(0, 2000, 1000)))
	p.post(0, vi.NewSend(p.seg(0, 0, 50)))
	p.wantStatus("first receive", p.reapRecv(p.v[1], first), vi.StatusOpRemoteRDMAWrite)
	if first.Length != 1000 || first.ImmediateData != 7 {
		e.Errorf("receive of a write: length %d, immediate data %d", first.Length, first.ImmediateData)
	}
	there := p.mem[1].Bytes()
	if !bytes.Equal(there[1000:3000], p.mem[0].Bytes()[:2000]) {
		e.wrongf("the write and the one before it are not there")
	}
	p.wantStatus("second receive", p.reapRecv(p.v[1], second), vi.StatusOpReceive)
	if second.Length != 50 || !bytes.Equal(there[3000:4000], p.mem[0].Bytes()[2000:3000]) || !isZero(there[:100]) {
		e.wrongf("what came behind it is wrong; receive of %d bytes", second.Length)
	}
	for range 3 {
		p.wantStatus("write", p.reapSend(p.v[0], nil), vi.StatusOpRDMAWrite)
	}
	p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
}

// testDescriptor: a descriptor belongs to the consumer again once reaped, and not before.
// [VIA-1.2-1] [VIA-3.1-2] [VIA-3.3-2] [VIA-3.3-4] [VIA-3.3-5] [VIA-4.7-1] [VIA-1.2-2]
func testDescriptor(e *env) {
	p := e.connected()
	r := vi.NewRecv(p.seg(1, 0, 100))
	p.postRecv(1, r)
	if s := r.Status(); s&vi.StatusDone != 0 {
		e.Errorf("status %v of a posted descriptor", s)
	}
	e.wantErr("posting it again", p.v[1].PostRecv(r), vi.ErrInvalidParameter)
	e.wantErr("posting it elsewhere", p.v[0].PostSend(r), vi.ErrInvalidParameter)
	e.wantErr("posting nothing", p.v[0].PostSend(nil), vi.ErrInvalidParameter) // [VIA-5.3-1]
	e.wantErr("posting nothing", p.v[0].PostRecv(nil), vi.ErrInvalidParameter)
	done := make(chan vi.Status, 1)
	s := vi.NewSend(p.seg(0, 0, 10))
	s.OnDone = func(d *vi.Descriptor) { done <- d.Status() }
	p.post(0, s)
	select {
	case got := <-done:
		p.wantStatus("status at OnDone", got, vi.StatusOpSend)
	case <-time.After(e.patience()):
		e.Fatal("OnDone was not called")
	}
	e.wantErr("posting a completed one that was not reaped", p.v[0].PostSend(s), vi.ErrInvalidParameter)
	p.reapSend(p.v[0], s)
	// A consumer may poll the status. Once Done is set, the data is visible.
	e.eventually("the receive is done", func() bool { return r.Status()&vi.StatusDone != 0 })
	if r.Length != 10 || !bytes.Equal(p.mem[1].Bytes()[:10], p.mem[0].Bytes()[:10]) {
		e.Error("a receive is done before its message is there")
	}
	p.reapRecv(p.v[1], r)
	// The loop posts the descriptor again with the old status, and uses the memory between two
	// posts. The race detector reports a late access by the provider.
	for i := range 50 {
		r.Length, r.ImmediateData, s.OnDone = 1, 2, nil
		clear(p.mem[1].Bytes()[:100])
		p.postRecv(1, r)
		p.fill(0, 0, 100, uint64(i))
		s.Segments = append(s.Segments[:0], p.seg(0, i, 10))
		s.Length = 10
		p.post(0, s)
		p.wantStatus("send", p.reapSend(p.v[0], s), vi.StatusOpSend)
		p.wantStatus("receive", p.reapRecv(p.v[1], r), vi.StatusOpReceive)
		if r.Length != 10 || !bytes.Equal(p.mem[1].Bytes()[:10], p.mem[0].Bytes()[i:][:10]) {
			e.wrongf("message came wrong")
		}
	}
}

// testPostingNeverBlocks posts more bytes than the network can buffer, while the peer handles
// nothing. [VIA-1.3-1]
func testPostingNeverBlocks(e *env) {
	p := e.connected(func(a *vi.Attributes) { a.FlowControl = e.FlowControl })
	depth := min(400, e.nics[0].Query().MaxDescriptorsPerQueue)
	var ds []*vi.Descriptor
	for range depth {
		ds = append(ds, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, min(10000, int(p.mtu())))))
	}
	begin := time.Now()
	for _, d := range ds {
		p.post(0, d)
	}
	if took := time.Since(begin); took > e.patience() {
		e.Errorf("%d posts took %v", depth, took)
	}
	for _, d := range ds {
		p.wantStatus("write", p.reapSend(p.v[0], d), vi.StatusOpRDMAWrite)
	}
}

// testRead: RDMA Reads return the peer's memory and consume no receive. [VIA-4.3-1] [VIA-4.4-3]
// [VIA-4.5-5] [VIA-3.3-2]
func testRead(e *env) {
	p := e.connected()
	mtu := int(p.mtu())
	recv := p.postRecv(1, vi.NewRecv(p.seg(1, 0, 10))) // an RDMA Read must not consume this receive
	for i, n := range []int{1, 2, 3, 100, 1448, 4096, 4097, mtu - 1, mtu} {
		for _, sizes := range [][]int{{mtu}, {1, 2, 300}, {4096, 0, 1000}} {
			if n/slicesMean(sizes) > 200 {
				continue
			}
			from := 11 + 3*i
			want := p.fill(1, from, n, uint64(i)+5)
			clear(p.mem[0].Bytes())
			dst := p.segments(0, i, n, sizes...)
			d := p.post(0, vi.NewRDMARead(p.mem[1].Remote(from), dst...))
			p.wantStatus("read", p.reapSend(p.v[0], d), vi.StatusOpRDMARead)
			if int(d.Length) != n || !bytes.Equal(p.bytesOf(0, dst), want) {
				e.wrongf("read of %d bytes into segments of %v came wrong", n, sizes)
			}
		}
	}
	// An RDMA Read returns the bytes of every earlier RDMA Write.
	for i := range 20 {
		p.fill(0, 0, 4000, uint64(i)+1000)
		p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(500), p.seg(0, 0, 2000)))
		p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(1500), p.seg(0, 2000, 2000)))
		p.post(0, vi.NewRDMARead(p.mem[1].Remote(500), p.seg(0, 10000, 3000)))
		p.wantStatus("write", p.reapSend(p.v[0], nil), vi.StatusOpRDMAWrite)
		p.wantStatus("write", p.reapSend(p.v[0], nil), vi.StatusOpRDMAWrite)
		p.wantStatus("read", p.reapSend(p.v[0], nil), vi.StatusOpRDMARead)
		b := p.mem[0].Bytes()
		if !bytes.Equal(b[10000:11000], b[:1000]) || !bytes.Equal(b[11000:13000], b[2000:4000]) {
			e.wrongf("a read does not see the writes before it")
		}
	}
	if _, err := p.v[1].RecvDone(); !errors.Is(err, vi.ErrNotDone) {
		e.Errorf("the receive: %v", err)
	}
	p.post(0, vi.NewSend(p.seg(0, 0, 10)))
	p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	p.wantStatus("receive", p.reapRecv(p.v[1], recv), vi.StatusOpReceive)
}

// testReadOrder: many RDMA Reads among Sends and Writes complete in posting order, for every size
// of the window. [VIA-4.3-3] [VIA-4.3-4] [VIA-4.4-4] [VIA-8.3-13] [VIA-3.7-1]
func testReadOrder(e *env) {
	for _, window := range []int{0, 1, 2} {
		p := e.connected(func(a *vi.Attributes) { a.ReadWindow = window })
		const n = 30
		p.fill(1, 0, 4096*n/10, 8)
		var ds []*vi.Descriptor
		for i := range n {
			p.postRecv(1, vi.NewRecv(p.seg(1, 65536+100*i, 100)))
			ds = append(ds,
				vi.NewRDMARead(p.mem[1].Remote(100*i), p.seg(0, 1000*i, 1000)),
				vi.NewSend(p.seg(0, 65536, 50)).WithImmediate(uint32(i)))
			if i%3 == 0 {
				ds[len(ds)-1].WithFence()
			}
		}
		if k, err := p.v[0].PostSends(ds); k != len(ds) {
			e.Fatal(err)
		}
		for i, d := range ds {
			s := p.reapSend(p.v[0], d)
			p.wantStatus("number "+fmt.Sprint(i), s, vi.StatusOpSend, vi.StatusOpRDMARead)
			if k := i / 2; i%2 == 0 && !bytes.Equal(p.mem[0].Bytes()[1000*k:][:1000], p.mem[1].Bytes()[100*k:][:1000]) {
				e.wrongf("read %d came wrong", k)
			}
		}
		for i := range n {
			if r := p.reapRecv(p.v[1], nil); r.Failed() {
				e.Fatalf("receive %d: %v", i, r)
			}
		}
	}
	// A Send with a fence starts when the data of the earlier RDMA Read has arrived. Here the Send
	// gathers the memory the Read scatters to.
	p := e.connected()
	for i := range 20 {
		size := int(p.mtu())
		want := p.fill(1, 0, size, uint64(i)+60)
		clear(p.mem[0].Bytes())
		r := p.postRecv(1, vi.NewRecv(p.seg(1, memSize/2, size)))
		p.post(0, vi.NewRDMARead(p.mem[1].Remote(0), p.seg(0, 0, size)))
		p.post(0, vi.NewSend(p.seg(0, 0, size)).WithFence())
		p.wantStatus("read", p.reapSend(p.v[0], nil), vi.StatusOpRDMARead)
		p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
		p.wantStatus("receive", p.reapRecv(p.v[1], r), vi.StatusOpReceive)
		if !bytes.Equal(p.mem[1].Bytes()[memSize/2:][:size], want) {
			e.Fatal("a fenced send was gathered before the read brought its data")
		}
		// A fence without an outstanding Read has no effect.
		p.postRecv(1, vi.NewRecv())
		p.post(0, vi.NewSend().WithFence())
		p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
		p.reapRecv(p.v[1], nil)
	}
}

// testFlowControl: a message waits until the peer has posted a receive. An RDMA Write needs no
// receive, but waits for earlier messages, so that the order is kept. [VIA-4.1-3] [VIA-4.4-2]
func testFlowControl(e *env) {
	p := e.connected(flow)
	const n = 40
	for i := range n {
		d := vi.NewSend(p.seg(0, 64*i, 64)).WithImmediate(uint32(i))
		if i%4 == 3 {
			d = vi.NewRDMAWrite(p.mem[1].Remote(65536+64*i), p.seg(0, 64*i, 64)).WithImmediate(uint32(i))
		}
		p.post(0, d)
	}
	p.fill(0, memSize-100, 100, 1)
	time.Sleep(moment)
	for i := range n {
		if i == n/2 {
			time.Sleep(moment)
		}
		r := p.postRecv(1, vi.NewRecv(p.seg(1, 64*i, 64)))
		got := p.reapRecv(p.v[1], r)
		want := vi.StatusOpReceive
		if i%4 == 3 {
			want = vi.StatusOpRemoteRDMAWrite
		}
		p.wantStatus("receive", got, want)
		if r.ImmediateData != uint32(i) {
			e.Fatalf("message %d, want %d", r.ImmediateData, i)
		}
	}
	for range n {
		if s := p.reapSend(p.v[0], nil); s.Failed() {
			e.Errorf("send: %v", s)
		}
	}
	p.claim(0, p.v[0])
	p.claim(1, p.v[1])
	// If the connection ends while a message waits for a receive, the message is flushed and not
	// sent.
	d := p.post(0, vi.NewSend(p.seg(0, 0, 10)))
	time.Sleep(moment)
	if _, err := p.v[0].SendDone(); !errors.Is(err, vi.ErrNotDone) {
		e.Errorf("a send without a receive: %v", err)
	}
	p.must(p.v[0].Disconnect())
	p.wantStatus("a send held back", p.reapSend(p.v[0], d), vi.StatusOpSend|vi.StatusFlushed)

	// The memory of a waiting message is deregistered here.
	p = e.connected(flow)
	gone := e.region(0, 100)
	d = p.post(0, vi.NewSend(gone.Segment(0, 100)))
	time.Sleep(moment)
	e.must(e.nics[0].DeregisterMem(gone))
	r := p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
	p.wantStatus("a send of deregistered memory", p.reapSend(p.v[0], d), vi.StatusOpSend|vi.StatusProtectionError)
	if !e.reliable() {
		p.post(0, vi.NewSend(p.seg(0, 0, 10)))
		p.wantStatus("the next", p.reapRecv(p.v[1], r), vi.StatusOpReceive)
	}
}

// testReception: at Reliable Reception a send completes only after the message is in the target's
// memory and the receive at the target has completed. [VIA-4.5-4]
func testReception(e *env) {
	if e.level != vi.ReliableReception {
		return
	}
	p := e.connected()
	size := int(p.mtu())
	for i := range 20 {
		want := p.fill(0, 0, size, uint64(i)+300)
		clear(p.mem[1].Bytes())
		r := p.postRecv(1, vi.NewRecv(p.seg(1, 0, size)))
		s := p.post(0, vi.NewSend(p.seg(0, 0, size)))
		p.wantStatus("send", p.reapSend(p.v[0], s), vi.StatusOpSend)
		if r.Status()&vi.StatusDone == 0 {
			e.Fatal("a send is complete before its receive")
		}
		if d, err := p.v[1].RecvDone(); d != r || err != nil || !bytes.Equal(p.mem[1].Bytes()[:size], want) {
			e.Fatalf("the receive of a complete send: %v", err)
		}
		w := p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(memSize/2), p.seg(0, 0, size)))
		p.wantStatus("write", p.reapSend(p.v[0], w), vi.StatusOpRDMAWrite)
		if !bytes.Equal(p.mem[1].Bytes()[memSize/2:][:size], want) {
			e.wrongf("a write is complete before its data is there")
		}
	}
}
