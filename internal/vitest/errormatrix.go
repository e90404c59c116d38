package vitest

import (
	"errors"
	"slices"
	"time"

	"viaduct/vi"
)

// The error matrix [VIA 4.6] gives for each error, by reliability level, the status of the
// initiator's descriptor and of the receive at the target, and the errors reported on both sides.

// expect is a cell of the matrix.
type expect struct {
	send  []vi.Status    // allowed final status of the initiator's descriptor, without op bits
	recv  []vi.Status    // the same for the receive; nil if no receive is posted or consumed
	local []vi.ErrorCode // asynchronous errors at the initiator except Connection Lost
	async []vi.ErrorCode // the same at the target
}

// A row is a situation of the matrix. do causes the situation on a connected pair, with side 0 as
// the initiator. It returns the initiator's send descriptor, and the receive at the target or nil.
type row struct {
	name string
	do   func(p *pair) (s, r *vi.Descriptor)

	ud, rd, rr expect
	dropped    *[3]expect // the three cells on a network that drops damaged frames; nil: as above
	read       bool
	faulty     func(Harness) bool
}

var (
	ok = []vi.Status{0}
	// the connection broke before or after the descriptor completed
	maybe  = []vi.Status{0, vi.StatusTransportError, vi.StatusFlushed}
	format = []vi.Status{vi.StatusFormatError}
	prot   = []vi.Status{vi.StatusProtectionError}
	length = []vi.Status{vi.StatusLengthError}
	remote = []vi.Status{vi.StatusRemoteDescriptor}
	rprot  = []vi.Status{vi.StatusRDMAProtection}
	trans  = []vi.Status{vi.StatusTransportError}
	part   = []vi.Status{vi.StatusPartialError}

	// A fault at the sender may end a message whose first part has arrived.
	goneOrPart = []vi.Status{vi.StatusFlushed, vi.StatusPartialError}
)

func codes(c ...vi.ErrorCode) []vi.ErrorCode { return c }

// local returns a row whose error the initiator detects before sending. The receive at the target
// stays posted, or is flushed if the connection ends.
func local(name string, status []vi.Status, do func(p *pair) *vi.Descriptor) row {
	return row{
		name: name,
		do: func(p *pair) (s, r *vi.Descriptor) {
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 1024)))
			return do(p), r
		},
		ud: expect{send: status},
		rd: expect{send: status, recv: goneOrPart},
		rr: expect{send: status, recv: goneOrPart},
	}
}

var matrix = []row{
	// [VIA-4.6-1] [VIA-3.2-1] [VIA-3.2-3]
	local("MalformedSend/Op3", format, func(p *pair) *vi.Descriptor {
		return p.post(0, &vi.Descriptor{Control: vi.OpMask})
	}),
	local("MalformedSend/ReservedBits", format, func(p *pair) *vi.Descriptor {
		return p.post(0, &vi.Descriptor{Control: 0x0010})
	}),
	// [VIA-3.4-1]
	local("MalformedSend/TooManySegments", format, func(p *pair) *vi.Descriptor {
		return p.post(0, vi.NewSend(make([]vi.Segment, p.nics[0].Query().MaxSegmentsPerDesc+1)...))
	}),
	// [VIA-3.6-1]
	local("MalformedSend/ReadWithImmediate", format, func(p *pair) *vi.Descriptor {
		return p.post(0, vi.NewRDMARead(p.mem[1].Remote(0)).WithImmediate(1))
	}),
	// [VIA-4.6-2] [VIA-1.5-4]
	local("GatherFault/NoRegion", prot, func(p *pair) *vi.Descriptor {
		s := p.seg(0, 0, 100)
		s.Handle = 0
		return p.post(0, vi.NewSend(s))
	}),
	local("GatherFault/SecondSegment", prot, func(p *pair) *vi.Descriptor {
		return p.post(0, vi.NewSend(p.seg(0, 0, 100), p.seg(0, memSize-10, 11)))
	}),
	local("GatherFault/Write", prot, func(p *pair) *vi.Descriptor {
		return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, memSize-10, 11)))
	}),
	// [VIA-4.6-3] [VIA-3.5-1] [VIA-3.5-2]
	local("SendLength/NotTheSum", length, func(p *pair) *vi.Descriptor {
		d := vi.NewSend(p.seg(0, 0, 100))
		d.Length = 99
		return p.post(0, d)
	}),
	local("SendLength/AboveMTU", length, func(p *pair) *vi.Descriptor {
		return p.post(0, vi.NewSend(p.seg(0, 0, int(p.mtu())+1)))
	}),
	local("SendLength/WriteAboveMTU", length, func(p *pair) *vi.Descriptor {
		return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, int(p.mtu())+1)))
	}),
	{ // [VIA-4.6-4] [VIA-4.1-3] [VIA-5.2-4]
		name: "NoReceive",
		do: func(p *pair) (s, r *vi.Descriptor) {
			return p.post(0, vi.NewSend(p.seg(0, 0, 100))), nil
		},
		ud: expect{send: ok, async: codes(vi.ErrorRecvQEmpty)},
		rd: expect{send: maybe, async: codes(vi.ErrorRecvQEmpty)},
		rr: expect{send: remote, async: codes(vi.ErrorRecvQEmpty)},
	},
	{ // [VIA-4.6-5] [VIA-4.1-2] [VIA-4.5-6]
		name: "TooLongForReceive",
		do: func(p *pair) (s, r *vi.Descriptor) {
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 50), p.seg(1, 100, 49)))
			return p.post(0, vi.NewSend(p.seg(0, 0, 100))), r
		},
		ud: expect{send: ok, recv: length},
		rd: expect{send: maybe, recv: length},
		rr: expect{send: remote, recv: length},
	},
	{ // the message has several frames, and the receive has room for the first
		name: "TooLongForReceive/ManyFrames",
		do: func(p *pair) (s, r *vi.Descriptor) {
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, int(p.mtu())-1)))
			return p.post(0, vi.NewSend(p.seg(0, 0, int(p.mtu())))), r
		},
		ud: expect{send: ok, recv: length},
		rd: expect{send: maybe, recv: length},
		rr: expect{send: remote, recv: length},
	},
	{ // [VIA-4.6-6] [VIA-3.2-2]
		name: "MalformedReceive",
		do: func(p *pair) (s, r *vi.Descriptor) {
			r = vi.NewRecv(p.seg(1, 0, 100))
			r.Control = vi.OpRDMAWrite
			p.postRecv(1, r)
			return p.post(0, vi.NewSend(p.seg(0, 0, 100))), r
		},
		ud: expect{send: ok, recv: format},
		rd: expect{send: maybe, recv: format},
		rr: expect{send: remote, recv: format},
	},
	{
		name: "MalformedReceive/TooManySegments",
		do: func(p *pair) (s, r *vi.Descriptor) {
			r = p.postRecv(1, vi.NewRecv(make([]vi.Segment, p.nics[1].Query().MaxSegmentsPerDesc+1)...))
			return p.post(0, vi.NewSend()), r
		},
		ud: expect{send: ok, recv: format},
		rd: expect{send: maybe, recv: format},
		rr: expect{send: remote, recv: format},
	},
	{ // [VIA-4.6-7] [VIA-1.5-5]
		name: "ScatterFault",
		do: func(p *pair) (s, r *vi.Descriptor) {
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 10), p.seg(1, memSize-10, 90)))
			return p.post(0, vi.NewSend(p.seg(0, 0, 100))), r
		},
		ud: expect{send: ok, recv: prot},
		rd: expect{send: maybe, recv: prot},
		rr: expect{send: remote, recv: prot},
	},
	{ // [VIA-8.3-16]: the memory is registered at the post, but not when the descriptor starts
		name: "ScatterFault/Deregistered",
		do: func(p *pair) (s, r *vi.Descriptor) {
			gone := p.region(1, 100)
			r = p.postRecv(1, vi.NewRecv(gone.Segment(0, 100)))
			p.must(p.nics[1].DeregisterMem(gone))
			return p.post(0, vi.NewSend(p.seg(0, 0, 100))), r
		},
		ud: expect{send: ok, recv: prot},
		rd: expect{send: maybe, recv: prot},
		rr: expect{send: remote, recv: prot},
	},
	{ // [VIA-4.6-8] [VIA-5.2-6]
		name: "WriteFault",
		do: func(p *pair) (s, r *vi.Descriptor) {
			return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(memSize-99), p.seg(0, 0, 100))), nil
		},
		ud: expect{send: ok, async: codes(vi.ErrorRDMAWProt)},
		rd: expect{send: maybe, async: codes(vi.ErrorRDMAWProt)},
		rr: expect{send: rprot, async: codes(vi.ErrorRDMAWProt)},
	},
	{ // [VIA-4.6-9] [VIA-5.2-10]
		name: "WriteFault/Immediate",
		do: func(p *pair) (s, r *vi.Descriptor) {
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
			return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(memSize-99), p.seg(0, 0, 100)).WithImmediate(5)), r
		},
		ud: expect{send: ok, recv: rprot},
		rd: expect{send: maybe, recv: rprot},
		rr: expect{send: rprot, recv: rprot},
	},
	{ // [VIA-4.6-18]
		name: "WriteImmediate/NoReceive",
		do: func(p *pair) (s, r *vi.Descriptor) {
			return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, 100)).WithImmediate(5)), nil
		},
		ud: expect{send: ok, async: codes(vi.ErrorRecvQEmpty)},
		rd: expect{send: maybe, async: codes(vi.ErrorRecvQEmpty)},
		rr: expect{send: remote, async: codes(vi.ErrorRecvQEmpty)},
	},
	{ // [VIA-4.6-14] [VIA-5.2-8]
		name: "ReadFault", read: true,
		do: func(p *pair) (s, r *vi.Descriptor) {
			return p.post(0, vi.NewRDMARead(p.mem[1].Remote(memSize-99), p.seg(0, 0, 100))), nil
		},
		rd: expect{send: rprot, async: codes(vi.ErrorRDMARProt)},
		rr: expect{send: rprot, async: codes(vi.ErrorRDMARProt)},
	},
	{ // [VIA-4.6-15] [VIA-1.5-6]
		name: "ReadScatterFault", read: true,
		do: func(p *pair) (s, r *vi.Descriptor) {
			return p.post(0, vi.NewRDMARead(p.mem[1].Remote(0), p.seg(0, memSize-99, 100))), nil
		},
		rd: expect{send: prot},
		rr: expect{send: prot},
	},
	{ // [VIA-4.6-10] [VIA-5.2-7]
		name: "WriteCorrupted", faulty: canCorrupt, dropped: &vanished,
		do: func(p *pair) (s, r *vi.Descriptor) {
			p.Faults.Corrupt(p.v[0])
			return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, 100))), nil
		},
		ud: expect{send: ok, async: codes(vi.ErrorRDMAWData)},
		rd: expect{send: maybe, async: codes(vi.ErrorRDMAWData)},
		rr: expect{send: trans, async: codes(vi.ErrorRDMAWData)},
	},
	{
		name: "WriteCorrupted/Immediate", faulty: canCorrupt, dropped: &vanished,
		do: func(p *pair) (s, r *vi.Descriptor) {
			p.Faults.Corrupt(p.v[0])
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
			return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, 100)).WithImmediate(1)), r
		},
		ud: expect{send: ok, recv: trans},
		rd: expect{send: maybe, recv: trans},
		rr: expect{send: trans, recv: trans},
	},
	{ // [VIA-4.6-11]
		name: "WriteInPart", faulty: canTruncate, dropped: &cutWrite,
		do: func(p *pair) (s, r *vi.Descriptor) {
			p.Faults.Truncate(p.v[0])
			return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, int(p.mtu())))), nil
		},
		ud: expect{send: anyEnd, async: codes(vi.ErrorRDMAWAbort)},
		rd: expect{send: anyEnd, async: codes(vi.ErrorRDMAWAbort)},
		rr: expect{send: failedEnd, async: codes(vi.ErrorRDMAWAbort)},
	},
	{
		name: "WriteInPart/Immediate", faulty: canTruncate, dropped: &cutSend,
		do: func(p *pair) (s, r *vi.Descriptor) {
			p.Faults.Truncate(p.v[0])
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
			return p.post(0, vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, int(p.mtu()))).WithImmediate(1)), r
		},
		ud: expect{send: anyEnd, recv: part},
		rd: expect{send: anyEnd, recv: part},
		rr: expect{send: failedEnd, recv: part},
	},
	{ // [VIA-4.6-12]
		name: "SendInPart", faulty: canTruncate, dropped: &cutSend,
		do: func(p *pair) (s, r *vi.Descriptor) {
			p.Faults.Truncate(p.v[0])
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, int(p.mtu()))))
			return p.post(0, vi.NewSend(p.seg(0, 0, int(p.mtu())))), r
		},
		ud: expect{send: anyEnd, recv: part},
		rd: expect{send: anyEnd, recv: part},
		rr: expect{send: failedEnd, recv: part},
	},
	{ // [VIA-4.6-13]; testCorruptUnreliable covers unreliable delivery
		name: "SendCorrupted", faulty: canCorrupt, dropped: &vanished,
		do: func(p *pair) (s, r *vi.Descriptor) {
			p.Faults.Corrupt(p.v[0])
			r = p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
			return p.post(0, vi.NewSend(p.seg(0, 0, 100))), r
		},
		rd: expect{send: maybe, recv: trans},
		rr: expect{send: trans, recv: trans},
	},
}

// If the sender itself aborts a message, the descriptor ends with the cause.
var (
	failedEnd = []vi.Status{vi.StatusTransportError, vi.StatusProtectionError, vi.StatusLengthError}
	anyEnd    = append([]vi.Status{0, vi.StatusFlushed}, failedEnd...)
)

// If the network drops damaged frames, the message is lost. At unreliable delivery only the message
// is lost, at the other levels the connection too. A partly arrived message is reported as partial.
var (
	vanished = [3]expect{{send: ok}, {send: maybe, recv: goneOrPart}, {send: trans, recv: goneOrPart}}
	cutSend  = [3]expect{{send: ok}, {send: maybe, recv: part}, {send: trans, recv: part}}
	cutWrite = [3]expect{{send: ok}, {send: maybe, async: codes(vi.ErrorRDMAWAbort)},
		{send: trans, async: codes(vi.ErrorRDMAWAbort)}}
)

func canCorrupt(h Harness) bool  { return h.Faults.Corrupt != nil }
func canTruncate(h Harness) bool { return h.Faults.Truncate != nil }

// testErrorMatrix tests every row of the matrix at the level of e. [VIA-8.3-10] [VIA-4.5-1]
// [VIA-5.3-4]
func testErrorMatrix(e *env) {
	for _, r := range matrix {
		var x expect
		switch e.level {
		case vi.UnreliableDelivery:
			x = r.ud
		case vi.ReliableDelivery:
			x = r.rd
		case vi.ReliableReception:
			x = r.rr
		}
		if r.dropped != nil && e.Faults.Dropped {
			x = r.dropped[slices.Index([]vi.Reliability{vi.UnreliableDelivery, vi.ReliableDelivery, vi.ReliableReception}, e.level)]
		}
		if x.send == nil || r.read && !e.canRead() {
			continue // the matrix has no such cell
		}
		e.sub(r.name, func(e *env) {
			if r.faulty != nil && !r.faulty(e.Harness) {
				e.Skip("the harness can't inject this")
			}
			e.cell(r, x)
		})
	}
}

func (e *env) cell(r row, x expect) {
	p := e.connected()
	// do causes the error, and returns the affected descriptors.
	s, recv := r.do(p)
	op := vi.StatusOpSend
	switch s.Control.Op() {
	case vi.OpRDMAWrite:
		op = vi.StatusOpRDMAWrite
	case vi.OpRDMARead:
		op = vi.StatusOpRDMARead
	}
	got := p.reapSend(p.v[0], s)
	p.wantStatus("the send", got, withOp(op, x.send)...)
	if !e.reliable() {
		if recv != nil && x.recv != nil {
			p.wantRecv(recv, s, x.recv)
		}
		p.claim(1, p.v[1], x.async...)
		if recv != nil && x.recv == nil {
			// The receive was not consumed, so the next message uses the receive.
			p.must(p.v[0].PostSend(vi.NewSend(p.seg(0, 0, 7))))
			p.wantStatus("the next send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
			p.wantStatus("the next receive", p.reapRecv(p.v[1], recv), vi.StatusOpReceive)
		}
		p.works() // the VIs are still connected [VIA-4.5-2]
		p.claim(0, p.v[0], x.local...)
		return
	}
	// The connection is broken on both sides. [VIA-2.2-9] [VIA-4.5-3]
	for side, v := range p.v {
		p.waitState(v, vi.Error)
		async := x.local
		if side == 1 {
			async = x.async
		}
		p.claim(side, v, append(codes(async...), vi.ErrorConnLost)...)
	}
	if recv != nil {
		p.wantRecv(recv, s, x.recv)
	}
	for side, v := range p.v {
		// All later descriptors are flushed. [VIA-4.4-5] [VIA-2.2-11]
		late := p.post(side, vi.NewSend(p.seg(side, 0, 10)))
		p.wantStatus("a later send", p.reapSend(v, late), vi.StatusOpSend|vi.StatusFlushed)
		lateRecv := p.postRecv(side, vi.NewRecv(p.seg(side, 0, 10)))
		p.wantStatus("a later receive", p.reapRecv(v, lateRecv), vi.StatusOpReceive|vi.StatusFlushed)
		p.must(v.Disconnect())
	}
	p.connect() // the VIs can be connected again [VIA-2.2-12]
	p.works()
}

func (p *pair) wantRecv(r, s *vi.Descriptor, want []vi.Status) {
	p.Helper()
	op := vi.StatusOpReceive
	got := p.reapRecv(p.v[1], r)
	if s.Control.Op() == vi.OpRDMAWrite && got&vi.StatusFlushed == 0 {
		op = vi.StatusOpRemoteRDMAWrite // [VIA-3.3-2]
	}
	p.wantStatus("the receive", got, withOp(op, want)...)
}

func withOp(op vi.Status, ss []vi.Status) []vi.Status {
	var all []vi.Status
	for _, s := range ss {
		all = append(all, s|op)
	}
	return all
}

// testCorruptUnreliable: a damaged message is dropped or reported as damaged, but never delivered
// as undamaged. [VIA-4.6-13] [VIA-4.5-2]
func testCorruptUnreliable(e *env) {
	if e.reliable() {
		return
	}
	p := e.connected()
	e.Faults.Corrupt(p.v[0])
	first := p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
	second := p.postRecv(1, vi.NewRecv(p.seg(1, 100, 100)))
	p.post(0, vi.NewSend(p.seg(0, 0, 100)).WithImmediate(1))
	p.post(0, vi.NewSend(p.seg(0, 0, 100)).WithImmediate(2))
	p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	p.wantStatus("send", p.reapSend(p.v[0], nil), vi.StatusOpSend)
	s := p.reapRecv(p.v[1], first)
	if s.Failed() {
		p.wantStatus("the damaged message", s, vi.StatusOpReceive|vi.StatusTransportError)
		p.reapRecv(p.v[1], second)
		first = second
	}
	if first.ImmediateData != 2 {
		e.Errorf("message %d was delivered, want the second alone", first.ImmediateData)
	}
}

// testErrorOrder: descriptors before the failing descriptor succeed. Later descriptors are flushed
// without being executed, in posting order. [VIA-4.4-5] [VIA-4.4-1] [VIA-2.3-10]
func testErrorOrder(e *env) {
	p := e.connected()
	var recvs, sends []*vi.Descriptor
	for range 10 {
		recvs = append(recvs, p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100))))
	}
	for i := range 10 {
		n := 10
		if i == 5 {
			n = memSize + 1 - 100
		}
		d := vi.NewSend(p.seg(0, 100, n)).WithImmediate(uint32(i))
		d.Length = uint32(min(n, 10)) // descriptor 5 has a length error, unless its memory fails first
		sends = append(sends, d)
	}
	if n, err := p.v[0].PostSends(sends); n != 10 || err != nil {
		e.Fatalf("posted %d: %v", n, err)
	}
	for i, d := range sends {
		s := p.reapSend(p.v[0], d)
		switch {
		case i < 5 || i > 5 && !e.reliable():
			p.wantStatus("a good send", s, vi.StatusOpSend)
		case i == 5:
			p.wantStatus("the bad send", s, vi.StatusOpSend|vi.StatusProtectionError,
				vi.StatusOpSend|vi.StatusLengthError)
		default:
			p.wantStatus("a send after it", s, vi.StatusOpSend|vi.StatusFlushed)
		}
	}
	lost := false // at reliable delivery, whether a receive failed because the connection broke
	for i, d := range recvs {
		s := p.v[1]
		switch {
		case i < 5:
			got := p.reapRecv(s, d)
			if e.level == vi.ReliableDelivery && got.Failed() {
				lost = true
				p.wantStatus("a receive", got, vi.StatusOpReceive|vi.StatusFlushed,
					vi.StatusOpReceive|vi.StatusPartialError)
				continue
			}
			p.wantStatus("a receive", got, vi.StatusOpReceive)
			if lost || d.ImmediateData != uint32(i) {
				e.Errorf("receive %d has message %d", i, d.ImmediateData)
			}
		case i == 9 && !e.reliable():
			if _, err := s.RecvDone(); !errors.Is(err, vi.ErrNotDone) {
				e.Errorf("a receive more than messages: %v", err)
			}
		case !e.reliable():
			p.wantStatus("a receive", p.reapRecv(s, d), vi.StatusOpReceive)
		default:
			p.wantStatus("a receive after it", p.reapRecv(s, d), vi.StatusOpReceive|vi.StatusFlushed,
				vi.StatusOpReceive|vi.StatusPartialError)
		}
	}
}

// testRemoteDisconnect: after the peer has disconnected, the VI is in state Error and all
// descriptors are flushed. [VIA-4.6-17] [VIA-2.2-9] [VIA-5.2-3]
func testRemoteDisconnect(e *env) {
	p := e.connected()
	states := make(chan vi.State, 1)
	p.nics[0].ErrorCallback(func(d vi.ErrorDescriptor) {
		if d.Code != vi.ErrorConnLost || d.VI != p.v[0] || d.Resource != vi.ResourceVI {
			e.Errorf("asynchronous error %v", d)
		}
		states <- d.VI.State()
	})
	var recvs []*vi.Descriptor
	for range 5 {
		recvs = append(recvs, p.postRecv(0, vi.NewRecv(p.seg(0, 0, 10))))
	}
	p.must(p.v[1].Disconnect())
	select {
	case s := <-states:
		if s != vi.Error {
			e.Errorf("state %v in the handler, want Error", s)
		}
	case <-time.After(e.patience()):
		e.Fatal("no Connection Lost")
	}
	if !p.v[0].PeerDisconnected() || p.v[1].PeerDisconnected() {
		e.Error("it is not known that the peer disconnected, or on the wrong side")
	}
	for _, d := range recvs {
		p.wantStatus("receive", p.reapRecv(p.v[0], d), vi.StatusOpReceive|vi.StatusFlushed)
	}
	p.must(p.v[0].Disconnect())
	p.claim(1, p.v[1]) // the side that disconnects gets no asynchronous error
	if s := p.v[0].State(); s != vi.Idle {
		e.Errorf("state %v", s)
	}
}

// testCut: the transport fails while messages are in flight. [VIA-4.6-16] [VIA-2.3-10]
func testCut(e *env) {
	p := e.connected()
	const n = 60
	for range n {
		p.postRecv(1, vi.NewRecv(p.seg(1, 0, 4096)))
	}
	var sends []*vi.Descriptor
	for i := range n {
		if i == n/2 {
			e.Faults.Cut(p.v[0])
		}
		sends = append(sends, p.post(0, vi.NewSend(p.seg(0, 0, 4096)).WithImmediate(uint32(i))))
	}
	for side, v := range p.v {
		p.waitState(v, vi.Error)
		p.claim(side, v, vi.ErrorConnLost)
		if v.PeerDisconnected() {
			e.Errorf("side %d takes the cut for an orderly end", side)
		}
	}
	rank := 0 // successes come first, then descriptors that had started, then the others
	for _, d := range sends {
		s := p.reapSend(p.v[0], d)
		r := 0
		switch {
		case s&vi.StatusTransportError != 0 && e.reliable():
			r = 1
		case s&vi.StatusFlushed != 0:
			r = 2
		case s.Failed():
			e.Errorf("send: %v", s)
		}
		if r < rank {
			e.Errorf("send ended with %v after one of rank %d", s, rank)
		}
		rank = r
	}
	next := uint32(0)
	for range n {
		d, _ := p.v[1].RecvWait(e.ctx())
		if d == nil {
			e.Fatal("a receive is missing")
		}
		if s := d.Status(); s.Failed() {
			p.wantStatus("receive", s, vi.StatusOpReceive|vi.StatusFlushed, vi.StatusOpReceive|vi.StatusPartialError)
			next = n // no later message may be delivered
		} else if d.ImmediateData < next {
			e.Errorf("message %d after %d", d.ImmediateData, next)
		} else {
			next = d.ImmediateData + 1
		}
	}
}

// testNothingAfterError: every descriptor after the failing descriptor is flushed, even if in
// flight or finished at the time of the report. [VIA-4.4-5]
func testNothingAfterError(e *env) {
	if !e.reliable() {
		return
	}
	rest := func(p *pair, bad *vi.Descriptor, want vi.Status) {
		e.Helper()
		ds := []*vi.Descriptor{bad}
		for i := range 12 {
			d := vi.NewSend(p.seg(0, 0, 10))
			if i%3 == 1 {
				d = vi.NewRDMAWrite(p.mem[1].Remote(0), p.seg(0, 0, 2000))
			}
			ds = append(ds, d)
			p.postRecv(1, vi.NewRecv(p.seg(1, 4096, 10)))
		}
		if _, err := p.v[0].PostSends(ds); err != nil {
			e.Fatal(err)
		}
		p.wantStatus("the one in error", p.reapSend(p.v[0], bad), want)
		for _, d := range ds[1:] {
			op := vi.StatusOpSend
			if d.Control.Op() == vi.OpRDMAWrite {
				op = vi.StatusOpRDMAWrite
			}
			p.wantStatus("one behind it", p.reapSend(p.v[0], d), op|vi.StatusFlushed)
		}
		p.waitState(p.v[0], vi.Error)
		p.must(p.v[0].Disconnect())
		p.waitState(p.v[1], vi.Error)
		p.must(p.v[1].Disconnect())
		p.drain(p.v[1])
		p.connect() // a new connection of the same VIs works
		p.works()
		for _, r := range e.async {
			r.take()
		}
	}
	if e.level == vi.ReliableReception {
		p := e.connected()
		p.postRecv(1, vi.NewRecv(p.seg(1, 0, 5)))
		rest(p, vi.NewSend(p.seg(0, 0, 10)), vi.StatusOpSend|vi.StatusRemoteDescriptor)
		rest(e.connected(), vi.NewRDMAWrite(vi.RemoteSegment{}, p.seg(0, 0, 10)),
			vi.StatusOpRDMAWrite|vi.StatusRDMAProtection)
	}
	if e.canRead() {
		p := e.connected()
		rest(p, vi.NewRDMARead(vi.RemoteSegment{}, p.seg(0, 0, 10)), vi.StatusOpRDMARead|vi.StatusRDMAProtection)
	}
}
