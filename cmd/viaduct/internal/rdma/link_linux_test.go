//go:build linux && (amd64 || arm64)

package rdma

import (
	"bytes"
	stdcontext "context"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/iwarp"
)

// A linkEnd is either of two connected queue pairs, with the actions of the program.
type linkEnd struct {
	t      *testing.T
	q      *queuePair
	iw     *iwarp.QueuePair
	mem    []byte // its memory
	whole  *region
	ring   ring // the send queue, as the program sees it
	posted struct{ sends, receives uint32 }
	taken  uint32 // number of completions that the end has polled
}

const linkMemory = 1 << 20

// linkedPair returns two ends, with a link or with only their stream.
func linkedPair(t *testing.T, linked bool) (a, b *linkEnd) {
	t.Helper()
	end := func() *linkEnd {
		x := testContext(t)
		q := &queuePair{x: x, pd: newDomain(x.dev), scq: testCQ(t, x), doorbell: make(chan struct{}, 1)}
		q.rcq, q.recv.q = q.scq, q
		q.recv.ring = testRing(t, x)
		var err error
		if q.sq.ring, err = newRing(x.arena, 64, abi.SQELen); err != nil {
			t.Fatal(err)
		}
		q.num = x.dev.addQP(q)
		x.qps.add(q)
		e := &linkEnd{t: t, q: q, ring: ring{mem: q.sq.mem, entry: q.sq.entry, n: q.sq.n}}
		if e.mem, err = unix.Mmap(-1, 0, linkMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(e.mem) })
		e.whole = e.register(0, linkMemory, abi.AccessLocalWrite|abi.AccessRemoteRead|abi.AccessRemoteWrite, q.pd)
		return e
	}
	a, b = end(), end()
	var l *link
	if linked {
		l = &link{ends: [2]*queuePair{a.q, b.q}}
	}
	ctx, cancel := stdcontext.WithTimeout(t.Context(), patience)
	defer cancel()
	config := func(e *linkEnd) *iwarp.Config {
		c, err := e.q.config()
		if err != nil {
			t.Fatal(err)
		}
		c.IRD, c.ORD = 4, 4
		return c
	}
	listener, err := iwarp.Listen("127.0.0.1:0", config(b))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	came := make(chan *iwarp.QueuePair, 1)
	go func() {
		p, _ := listener.Accept(ctx)
		came <- p
	}()
	if a.iw, err = iwarp.Dial(ctx, listener.Addr().String(), config(a)); err != nil {
		t.Fatal(err)
	}
	if b.iw = <-came; b.iw == nil {
		t.Fatal("no peer")
	}
	t.Cleanup(func() { a.q.x.s.wg.Wait(); b.q.x.s.wg.Wait() })
	for _, e := range []*linkEnd{a, b} {
		if err := e.q.start(e.iw, l, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// at returns the address of a byte of the end's memory.
func (e *linkEnd) at(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&e.mem[0]))) + uint64(off) }

func (e *linkEnd) register(off, n int, access uint32, pd *domain) *region {
	e.t.Helper()
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		e.t.Fatal(err)
	}
	m := &memory{fd: fd, maps: ownMappings(e.t), uses: 1, by: ownProcess(e.t, &e.q.x.s.processes)}
	s := &space{mem: m, pd: pd}
	var a iwarp.Access
	if access&abi.AccessRemoteRead != 0 {
		a |= iwarp.RemoteRead
	}
	if access&abi.AccessRemoteWrite != 0 {
		a |= iwarp.RemoteWrite
	}
	mr, err := pd.iw.RegisterSpace(s, e.at(off), uint64(n), a)
	if err != nil {
		e.t.Fatal(err)
	}
	r := &region{x: e.q.x, iw: mr, mem: m, space: s, pd: pd, base: e.at(off), length: uint64(n), access: access}
	pd.users++
	e.q.x.mrs.add(r)
	e.q.x.regions.Store(mr.STag(), r)
	return r
}

// A part is a range of the end's memory in a region. The zero region is the region of all memory.
type part struct {
	off, n int
	r      *region
}

func (e *linkEnd) sges(to abi.Body, parts []part) {
	for i, p := range parts {
		r := p.r
		if r == nil {
			r = e.whole
		}
		to.Put64(16*i, e.at(p.off))
		to.Put32(16*i+8, uint32(p.n))
		to.Put32(16*i+12, r.iw.STag())
	}
}

func (e *linkEnd) receive(id uint64, parts ...part) {
	s := e.q.recv.ring.slot(e.posted.receives)
	e.posted.receives++
	abi.Body(s).Put64(0, id)
	e.sges(abi.Body(s)[16:], parts)
	atomic.StoreUint32(word(s), abi.Valid|uint32(len(parts))<<16)
}

// send posts a request as the library does. flags are added to Valid and Signalled.
func (e *linkEnd) send(id uint64, op abi.WROp, flags uint32, raddr uint64, rkey uint32, parts ...part) {
	before := e.ring.slot(e.posted.sends + e.ring.n - 1)
	e.post(id, op, flags, raddr, rkey, parts...)
	if atomic.LoadUint32(word(before))&abi.Valid == 0 {
		e.ringDoorbell()
	}
}

// post is send without the doorbell.
func (e *linkEnd) post(id uint64, op abi.WROp, flags uint32, raddr uint64, rkey uint32, parts ...part) {
	s := e.ring.slot(e.posted.sends)
	abi.Body(s).Put64(0, id)
	abi.Body(s).Put32(12, rkey)
	abi.Body(s).Put64(16, raddr)
	if flags&abi.Inline != 0 {
		abi.Body(s).Put32(32, uint32(parts[0].n))
		copy(s[40:], e.mem[parts[0].off:][:parts[0].n])
	} else {
		e.sges(abi.Body(s)[24:], parts)
	}
	e.posted.sends++
	atomic.StoreUint32(word(s), abi.Valid|abi.Signalled|flags|uint32(len(parts))<<16|uint32(op)<<24)
}

func (e *linkEnd) ringDoorbell() {
	select {
	case e.q.doorbell <- struct{}{}:
	default:
	}
}

// An outcome is a completion the program has polled.
type outcome struct {
	ID     uint64
	Op     abi.WROp
	Status abi.WCStatus
	Bytes  uint32
}

// poll waits for n completions.
func (e *linkEnd) poll(n int) (got []outcome) {
	e.t.Helper()
	q := e.q.scq
	for end := time.Now().Add(patience); len(got) < n; time.Sleep(50 * time.Microsecond) {
		slot := abi.Body(q.mem[int(e.taken%q.n)*abi.CQELen:][:abi.CQELen])
		switch w := atomic.LoadUint32(word(slot)); {
		case w&abi.Valid != 0:
			o := outcome{slot.U64(0), abi.WROp(w >> 8), abi.WCStatus(w >> 16), slot.U32(12)}
			if o.Status != abi.WCSuccess {
				o.Bytes = 0
			}
			got = append(got, o)
			atomic.StoreUint32(word(slot), 0)
			e.taken++
		case time.Now().After(end):
			e.t.Fatalf("%d of %d completions: %v", len(got), n, got)
		}
	}
	return got
}

// fill gives all bytes of both memories known values, different for each end.
func fill(ends ...*linkEnd) {
	for k, e := range ends {
		for i := range e.mem {
			e.mem[i] = byte(i*7 + i>>8 + 100*k)
		}
	}
}

// sentBytes returns how many bytes the streams of the ends have sent.
func sentBytes(ends ...*linkEnd) (n uint64) {
	for _, e := range ends {
		n += e.iw.Stats().SentBytes
	}
	return n
}

// payloadOf returns the sent and received bytes of two ends, as in "viaduct ps".
func payloadOf(a, b *linkEnd) (n [4]uint64) {
	for i, e := range [][2]*linkEnd{{a, b}, {b, a}} {
		c := report(e[0].q, e[1].q, e[0].iw, "dial", true)
		const request = 28 // bytes of a Read Request, which a link does not send
		n[2*i] = c.SentBytes - request*e[1].iw.Stats().ServedReads
		n[2*i+1] = c.ReceivedBytes - request*e[0].iw.Stats().ServedReads
	}
	return n
}

// TestLink: requests have the same effect over a link as over a stream: the same bytes at the same
// places, with the same completions. The link leaves the stream idle.
func TestLink(t *testing.T) {
	usually := notReadyFor
	notReadyFor = patience // a test on a busy machine may post its receives late
	t.Cleanup(func() { notReadyFor = usually })
	long := linkMemory - 4096
	for name, do := range map[string]func(a, b *linkEnd) (got [2][]outcome){
		"Send": func(a, b *linkEnd) (got [2][]outcome) {
			b.receive(7, part{off: 100, n: 50}, part{off: 300, n: 60})
			a.send(1, abi.WROpSend, 0, 0, 0, part{off: 1000, n: 10}, part{off: 2000, n: 80})
			return [2][]outcome{a.poll(1), b.poll(1)}
		},
		"Send, inline": func(a, b *linkEnd) (got [2][]outcome) {
			b.receive(7, part{off: 100, n: 80})
			a.send(1, abi.WROpSend, abi.Inline, 0, 0, part{off: 1000, n: 80})
			return [2][]outcome{a.poll(1), b.poll(1)}
		},
		"Send of nothing": func(a, b *linkEnd) (got [2][]outcome) {
			b.receive(7)
			a.send(1, abi.WROpSend, 0, 0, 0)
			return [2][]outcome{a.poll(1), b.poll(1)}
		},
		"Sends of which one waits": func(a, b *linkEnd) (got [2][]outcome) {
			b.receive(7, part{off: 0, n: 100})
			for i := range 3 {
				a.send(uint64(i), abi.WROpSend, 0, 0, 0, part{off: 1000 * i, n: 100})
			}
			got[1] = b.poll(1)
			time.Sleep(5 * time.Millisecond) // the engine has no entry that would wake it
			b.receive(8, part{off: 100, n: 100})
			b.receive(9, part{off: 200, n: 100})
			got[1] = append(got[1], b.poll(2)...)
			got[0] = a.poll(3)
			return got
		},
		"Write": func(a, b *linkEnd) (got [2][]outcome) {
			a.send(1, abi.WROpWrite, 0, b.at(5000), b.whole.iw.STag(), part{off: 17, n: 33}, part{off: 900, n: 4000})
			b.receive(7, part{off: 0, n: 1}) // its completion shows that the Send has arrived
			a.send(2, abi.WROpSend, 0, 0, 0, part{off: 3, n: 1})
			return [2][]outcome{a.poll(2), b.poll(1)}
		},
		"Write of much": func(a, b *linkEnd) (got [2][]outcome) {
			a.send(1, abi.WROpWrite, 0, b.at(4096), b.whole.iw.STag(), part{off: 1, n: long/2 - 3},
				part{off: long / 2, n: long / 2})
			b.receive(7, part{off: 0, n: 1})
			a.send(2, abi.WROpSend, 0, 0, 0, part{off: 3, n: 1})
			return [2][]outcome{a.poll(2), b.poll(1)}
		},
		"Read": func(a, b *linkEnd) (got [2][]outcome) {
			a.send(1, abi.WROpRead, 0, b.at(5000), b.whole.iw.STag(), part{off: 17, n: 300})
			return [2][]outcome{a.poll(1), nil}
		},
		"Read of much": func(a, b *linkEnd) (got [2][]outcome) {
			a.send(1, abi.WROpRead, 0, b.at(4096), b.whole.iw.STag(), part{off: 3, n: long})
			return [2][]outcome{a.poll(1), nil}
		},
		"short Writes": func(a, b *linkEnd) (got [2][]outcome) {
			// Adjacent, from separate places; overlapping; inline; and of no bytes.
			to := 5000
			for i := range 10 {
				flags := uint32(0)
				n := 40
				switch i {
				case 3:
					to -= 60
				case 5:
					flags = abi.Inline
				case 6:
					n = 0
				}
				a.post(uint64(i), abi.WROpWrite, flags, b.at(to), b.whole.iw.STag(), part{off: 3000 * i, n: n})
				to += n
			}
			b.receive(7, part{off: 0, n: 1})
			a.post(10, abi.WROpSend, 0, 0, 0, part{off: 3, n: 1})
			a.ringDoorbell()
			return [2][]outcome{a.poll(11), b.poll(1)}
		},
		"a Read among Writes": func(a, b *linkEnd) (got [2][]outcome) {
			for i := range 3 {
				a.post(uint64(i), abi.WROpWrite, 0, b.at(5000+100*i), b.whole.iw.STag(), part{off: 1000 * i, n: 100})
			}
			// The Writes after the Read send the read bytes.
			a.post(3, abi.WROpRead, 0, b.at(70000), b.whole.iw.STag(), part{off: 9000, n: 300})
			for i := range 3 {
				a.post(uint64(4+i), abi.WROpWrite, abi.ReadFence, b.at(6000+100*i), b.whole.iw.STag(),
					part{off: 9000 + 100*i, n: 100})
			}
			b.receive(7, part{off: 0, n: 1})
			a.post(7, abi.WROpSend, 0, 0, 0, part{off: 3, n: 1})
			a.ringDoorbell()
			return [2][]outcome{a.poll(8), b.poll(1)}
		},
		"Sends that were read together": func(a, b *linkEnd) (got [2][]outcome) {
			for i := range 3 {
				b.receive(uint64(10+i), part{off: 100 * i, n: 100})
				a.post(uint64(i), abi.WROpSend, 0, 0, 0, part{off: 1000 * i, n: 30}, part{off: 1000*i + 500, n: 70})
			}
			a.ringDoorbell()
			return [2][]outcome{a.poll(3), b.poll(3)}
		},
		"both ways": func(a, b *linkEnd) (got [2][]outcome) {
			for i := range 4 {
				b.receive(uint64(10+i), part{off: 100 * i, n: 100})
				a.receive(uint64(20+i), part{off: 100 * i, n: 100})
			}
			for i := range 4 {
				a.send(uint64(i), abi.WROpSend, 0, 0, 0, part{off: 8000 + 100*i, n: 100})
				got[1] = append(got[1], b.poll(1)...)
				b.send(uint64(i), abi.WROpSend, 0, 0, 0, part{off: 9000 + 100*i, n: 100})
				got[0] = append(got[0], a.poll(2)...)
				got[1] = append(got[1], b.poll(1)...)
			}
			return got
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mem [2][]byte
			var outcomes [2][2][]outcome
			var shown [2][4]uint64
			for i, linked := range []bool{false, true} {
				a, b := linkedPair(t, linked)
				fill(a, b)
				outcomes[i] = do(a, b)
				mem[i] = append(bytes.Clone(a.mem), b.mem...)
				if sent := sentBytes(a, b); linked && sent > 0 {
					t.Errorf("%d bytes were sent past the link", sent)
				}
				shown[i] = payloadOf(a, b)
			}
			if !reflect.DeepEqual(outcomes[0], outcomes[1]) {
				t.Errorf("by stream %v, by link %v", outcomes[0], outcomes[1])
			}
			if shown[0] != shown[1] {
				t.Errorf("sent and received are shown as %d over the stream, as %d over the link", shown[0], shown[1])
			}
			for _, o := range append(outcomes[1][0], outcomes[1][1]...) {
				if o.Status != abi.WCSuccess {
					t.Errorf("completion %+v", o)
				}
			}
			if i := firstDifference(mem[0], mem[1]); i >= 0 {
				t.Errorf("memory differs from byte %d of end %d on", i%linkMemory, i/linkMemory)
			}
		})
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// TestLinkRefuses: an invalid request has the same result over a link as over a stream, and no
// effect: no byte of the peer's memory is read or written without the right.
func TestLinkRefuses(t *testing.T) {
	some := func(e *linkEnd, access uint32) *region { return e.register(0, 8192, access, e.q.pd) }
	foreign := func(e *linkEnd) *region {
		return e.register(0, 8192, abi.AccessLocalWrite|abi.AccessRemoteRead|abi.AccessRemoteWrite,
			newDomain(e.q.x.dev))
	}
	closed := func(e *linkEnd) uint32 {
		r := some(e, abi.AccessLocalWrite|abi.AccessRemoteRead|abi.AccessRemoteWrite)
		key := r.iw.STag()
		r.close()
		return key
	}
	for _, c := range []struct {
		name string
		post func(a, b *linkEnd)
	}{
		{"Write without the right", func(a, b *linkEnd) {
			a.send(1, abi.WROpWrite, 0, b.at(0),
				some(b, abi.AccessLocalWrite|abi.AccessRemoteRead).iw.STag(), part{n: 64})
		}},
		{"Read without the right", func(a, b *linkEnd) {
			a.send(1, abi.WROpRead, 0, b.at(0), some(b, abi.AccessLocalWrite|abi.AccessRemoteWrite).iw.STag(),
				part{n: 64})
		}},
		{"Write beyond the end", func(a, b *linkEnd) {
			a.send(1, abi.WROpWrite, 0, b.at(linkMemory-63), b.whole.iw.STag(), part{n: 64})
		}},
		{"Read before the beginning", func(a, b *linkEnd) {
			a.send(1, abi.WROpRead, 0, b.at(0)-1, b.whole.iw.STag(), part{n: 64})
		}},
		{"Write to an address that wraps", func(a, b *linkEnd) {
			a.send(1, abi.WROpWrite, 0, ^uint64(0)-10, b.whole.iw.STag(), part{n: 64})
		}},
		{"Write to another domain", func(a, b *linkEnd) {
			a.send(1, abi.WROpWrite, 0, b.at(0), foreign(b).iw.STag(), part{n: 64})
		}},
		{"Read of a region that is gone", func(a, b *linkEnd) { a.send(1, abi.WROpRead, 0, b.at(0), closed(b), part{n: 64}) }},
		{"Send of another domain", func(a, b *linkEnd) {
			b.receive(7, part{n: 64})
			a.send(1, abi.WROpSend, 0, 0, 0, part{n: 64, r: foreign(a)})
		}},
		{"Read into memory that is not to be written", func(a, b *linkEnd) {
			a.send(1, abi.WROpRead, 0, b.at(0), b.whole.iw.STag(), part{n: 64, r: some(a, abi.AccessRemoteRead)})
		}},
		{"Send that is longer than its receive", func(a, b *linkEnd) {
			b.receive(7, part{n: 63})
			a.send(1, abi.WROpSend, 0, 0, 0, part{n: 64})
		}},
		{"Send into a receive without the right", func(a, b *linkEnd) {
			b.receive(7, part{n: 64, r: some(b, abi.AccessRemoteRead)})
			a.send(1, abi.WROpSend, 0, 0, 0, part{n: 64})
		}},
		{"inline Read", func(a, b *linkEnd) {
			a.send(1, abi.WROpRead, abi.Inline, b.at(0), b.whole.iw.STag(), part{n: 64})
		}},
		{"unknown operation", func(a, b *linkEnd) { a.send(1, 9, 0, b.at(0), b.whole.iw.STag(), part{n: 64}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var outcomes [2]string
			for i, linked := range []bool{false, true} {
				a, b := linkedPair(t, linked)
				fill(a, b)
				before := append(bytes.Clone(a.mem), b.mem...)
				b.receive(100, part{off: 4096, n: 1}) // flushed at the end
				b.posted.receives = 0                 // a case that posts a receive posts this one again
				c.post(a, b)
				within(t, "the end of both", func() { <-a.iw.Ended(); <-b.iw.Ended() })
				outcomes[i] = fmt.Sprint(a.poll(1), b.poll(1), kindOf(a.iw.Err()), kindOf(b.iw.Err()))
				if d := firstDifference(before, append(bytes.Clone(a.mem), b.mem...)); d >= 0 {
					t.Errorf("linked %v: byte %d of end %d was written", linked, d%linkMemory, d/linkMemory)
				}
			}
			if outcomes[0] != outcomes[1] {
				t.Errorf("by stream %s, by link %s", outcomes[0], outcomes[1])
			}
			t.Log(outcomes[1])
		})
	}
}

// kindOf returns an error without the addresses.
func kindOf(err error) string {
	if e, ok := err.(*iwarp.TerminateError); ok {
		return fmt.Sprintf("Terminate, remote %v, %v %v", e.Remote, e.Layer, e.Code)
	}
	return fmt.Sprintf("%T", err)
}

// A region is not closed while bytes of the region are copied past the streams, and no bytes are
// copied afterwards.
func TestLinkHolds(t *testing.T) {
	a, b := linkedPair(t, true)
	r := b.register(0, 4096, abi.AccessRemoteRead, b.q.pd)
	for range 2 {
		if !r.hold() {
			t.Fatal("a region that is open is not held")
		}
	}
	closed := make(chan struct{})
	go func() { r.close(); close(closed) }()
	within(t, "the beginning of close", func() {
		for r.hold() {
			r.letGo()
			time.Sleep(time.Millisecond)
		}
	})
	r.letGo()
	select {
	case <-closed:
		t.Fatal("the region was closed while it was held")
	case <-time.After(10 * time.Millisecond):
	}
	r.letGo()
	within(t, "close", func() { <-closed })
	a.send(1, abi.WROpRead, 0, b.at(0), r.iw.STag(), part{n: 64})
	if got := a.poll(1); got[0].Status == abi.WCSuccess {
		t.Error("a region that is closed was read")
	}
}

// A message without a posted receive ends the connection after a time, over a link as over a
// stream. Posted requests are flushed.
func TestLinkNotReady(t *testing.T) {
	a, b := linkedPair(t, true)
	begin := time.Now()
	for i := range 3 {
		a.send(uint64(i), abi.WROpSend, 0, 0, 0, part{n: 64})
	}
	within(t, "the end", func() { <-a.iw.Ended(); <-b.iw.Ended() })
	if took := time.Since(begin); took < notReadyFor {
		t.Errorf("the connection ended after %v, want %v at least", took, notReadyFor)
	}
	for i, o := range a.poll(3) {
		if o.ID != uint64(i) {
			t.Errorf("completion %d is of request %d", i, o.ID)
		}
	}
}

// TestLinks: a connection gets a single link if both ends are served here and the bytes need not be
// visible on TCP.
func TestLinks(t *testing.T) {
	var ls links
	p, q := &queuePair{}, &queuePair{}
	r := route{}
	if ls.accept(r, q) != nil {
		t.Error("a link to a connection that was not dialled here")
	}
	ls.dial(r, p)
	l := ls.accept(r, q)
	if l == nil || l.peerOf(p) != q || l.peerOf(q) != p {
		t.Fatalf("link %+v", l)
	}
	if ls.accept(r, q) != nil {
		t.Error("a second link of one connection")
	}
	if got := ls.answered(r); got != l {
		t.Errorf("the side that dialled has %v", got)
	}
	if ls.answered(r) != nil || ls.accept(r, q) != nil {
		t.Error("a link is left")
	}
	ls.dial(r, p)
	if ls.answered(r) != nil {
		t.Error("a link without another end")
	}
	if len(ls.dials) > 0 {
		t.Error("dials are left")
	}
}
