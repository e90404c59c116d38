package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

func readInto(id uint64, b []byte) SendWR {
	return SendWR{ID: id, Op: OpRead, SG: []SGE{Buf(b)}, Remote: RemoteAddr{STag: 77, TO: 1000 * id}}
}

// respond answers the Read Request u with data.
func (p *peer) respond(u []byte, data []byte) {
	p.t.Helper()
	r, _, err := rdmap.ParseReadRequest(u[ddp.UntaggedLen:])
	if err != nil {
		p.t.Fatal(err)
	}
	p.ulpdu(tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO, true, data))
}

// TestORD checks that a Read waits at the head of the queue until fewer than ORD Reads are
// outstanding, and that every later request waits too. [RDMAP-6.1-3] [RDMAP-6.1-5] [MPA2-9.1-3]
// [MPA2-9.1-11] [I-20] [RDMAP-5.2-1] [I-58]
func TestORD(t *testing.T) { inBubble(t, testORD) }

func testORD(t *testing.T) {
	p, q := asResponder(t, &Config{ORD: 2, Interop: Interop{NoNudge: true}})
	if q.ORD() != 2 {
		t.Fatalf("ORD %d", q.ORD())
	}
	bufs := [4][]byte{}
	for i := range bufs {
		bufs[i] = make([]byte, 4)
		if err := q.Post(readInto(uint64(i), bufs[i])); err != nil {
			t.Fatal(err)
		}
	}
	q.Post(SendWR{ID: 4})
	r0, r1 := p.next(), p.next()
	p.silence()
	p.respond(r0, []byte("zero"))
	r2 := p.next()
	p.silence()
	p.respond(r1, []byte("one."))
	r3 := p.next()
	// The Send follows as soon as the last Read was sent. [I-53]
	if u := p.next(); hex.EncodeToString(u[:2]) != "4143" {
		t.Errorf("%x", u)
	}
	p.respond(r2, []byte("two."))
	p.silence()
	if got := q.SendCQ().Len(); got != 3 { // 0, 1 and 2; the Send waits for Read 3 [RDMAP-5.5-12]
		t.Errorf("%d completions", got)
	}
	p.respond(r3, []byte("3333"))
	for i := range 5 {
		if c := wantOK(t, q.SendCQ()); c.ID != uint64(i) || i < 4 && c.Len != 4 {
			t.Errorf("%+v, want %d", c, i)
		}
	}
	if string(bytes.Join(bufs[:], nil)) != "zeroone.two.3333" {
		t.Errorf("%q", bufs)
	}
	if bytes.Equal(r0[18:22], r1[18:22]) { // the STag of the sink must differ [I-58]
		t.Errorf("two Reads into one sink: %x, %x", r0, r1)
	}
	for i, u := range [][]byte{r0, r1, r2, r3} { // [RDMAP-5.2.1-7]
		if binary.BigEndian.Uint32(u[10:]) != uint32(i+1) {
			t.Errorf("MSN of Read %d: %x", i, u[10:14])
		}
	}
}

// TestFence checks that a request with Fence waits for all earlier Reads. [RDMAP-5.5-9]
// [RDMAP-5.5-8]
func TestFence(t *testing.T) { inBubble(t, testFence) }

func testFence(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	q.Post(readInto(1, make([]byte, 4)))
	q.Post(SendWR{ID: 2, Op: OpWrite})              // does not wait
	q.Post(SendWR{ID: 3, Op: OpWrite, Fence: true}) // waits
	q.Post(SendWR{ID: 4})                           // waits for the fenced Write
	r := p.next()
	if u := p.next(); u[0] != 0xc1 {
		t.Errorf("%x", u)
	}
	p.silence()
	p.respond(r, []byte("data"))
	if u := p.next(); hex.EncodeToString(u[:2]) != "c140" {
		t.Errorf("%x", u)
	}
	if u := p.next(); hex.EncodeToString(u[:2]) != "4143" {
		t.Errorf("%x", u)
	}
	for i := uint64(1); i <= 4; i++ {
		if c := wantOK(t, q.SendCQ()); c.ID != i {
			t.Errorf("%+v", c)
		}
	}
}

// TestReadCompletes checks that a Read does not complete before the last octet of its response was
// delivered. [DDP-4.1-7] [MPA-7.1.2-26] [RDMAP-5.5-16] [RDMAP-5.5-6] [RDMAP-5.5-19] [RDMAP-5.2.2-3]
// [RDMAP-5.2-1]
func TestReadCompletes(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	sink := make([]byte, 8)
	q.Post(readInto(1, sink))
	u := p.next()
	r, _, _ := rdmap.ParseReadRequest(u[18:])
	p.ulpdu(tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO, false, []byte("half")))
	b := p.enc.Append(nil, tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO+4, true, []byte("full")))
	p.raw(b[:len(b)-1])
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if c, err := q.SendCQ().Wait(ctx); err == nil {
		t.Errorf("%+v", c)
	}
	p.raw(b[len(b)-1:])
	if c := wantOK(t, q.SendCQ()); c.Len != 8 || string(sink) != "halffull" {
		t.Errorf("%+v, %q", c, sink)
	}
	if _, ok := q.RecvCQ().Poll(); ok { // [RDMAP-3.2-6]
		t.Error("completion for a Read Response")
	}
}

// TestReadResponses sends segments that do not continue the answer to our oldest Read. Each segment
// must end the stream, and must not be placed. [RDMAP-5.2.2-4] [RDMAP-5.2.2-7] [RDMAP-7.2-2]
// [DDP-4.2-7] [SEC-6.2.1-1] [I-45] [I-46] [I-58]
func TestReadResponses(t *testing.T) {
	for _, c := range []struct {
		name           string
		bad            func(r rdmap.ReadRequest, other *MemoryRegion) []byte
		layer, typ, co uint8
	}{
		{"other region", func(r rdmap.ReadRequest, o *MemoryRegion) []byte {
			return tag(rdmap.ReadResponse, o.STag(), 0, true, []byte("12345678"))
		}, 1, 1, 0},
		{"offset", func(r rdmap.ReadRequest, _ *MemoryRegion) []byte {
			return tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO+1, false, []byte("1"))
		}, 1, 1, 1},
		{"too long", func(r rdmap.ReadRequest, _ *MemoryRegion) []byte {
			return tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO, true, []byte("123456789"))
		}, 1, 1, 1},
		{"L too early", func(r rdmap.ReadRequest, _ *MemoryRegion) []byte {
			return tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO, true, []byte("1234567"))
		}, 0, 2, 0xff},
		{"L missing", func(r rdmap.ReadRequest, _ *MemoryRegion) []byte {
			return tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO, false, []byte("12345678"))
		}, 0, 2, 0xff},
		{"empty", func(r rdmap.ReadRequest, _ *MemoryRegion) []byte {
			return tag(rdmap.ReadResponse, 0, 0, true, nil)
		}, 0, 2, 0xff},
		{"Write to the sink", func(r rdmap.ReadRequest, _ *MemoryRegion) []byte {
			return tag(rdmap.Write, r.SinkSTag, r.SinkTO, true, []byte("12345678"))
		}, 1, 1, 0},
		{"for a Read already answered", func(r rdmap.ReadRequest, _ *MemoryRegion) []byte { return nil }, 0, 2, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
			other, _ := q.Register(make([]byte, 8), RemoteWrite)
			mr, _ := q.Register(bytes.Repeat([]byte{0xaa}, 8), LocalOnly)
			q.Post(SendWR{Op: OpRead, SG: []SGE{mr.SGE(0, 8)}})
			u := p.next()
			r, _, _ := rdmap.ParseReadRequest(u[18:])
			bad := c.bad(r, other)
			want := StatusFlushed
			if bad == nil {
				bad = tag(rdmap.ReadResponse, r.SinkSTag, r.SinkTO, true, []byte("12345678"))
				p.ulpdu(bad)
				want = StatusOK
			}
			p.ulpdu(bad)
			body := binary.BigEndian.AppendUint16([]byte{c.layer<<4 | c.typ, c.co, 0xc0, 0}, uint16(len(bad)))
			p.terminate(append(body, bad[:14]...))
			wantTerminate(t, ended(t, q), false, c.layer, c.typ, c.co)
			<-q.life.gone.C()
			if comp, ok := q.SendCQ().Poll(); !ok || comp.Status != want {
				t.Errorf("%+v, %t", comp, ok)
			}
			if want != StatusOK && !bytes.Equal(mr.Bytes(), bytes.Repeat([]byte{0xaa}, 8)) || other.Bytes()[0] != 0 {
				t.Errorf("memory was changed: %q, %q", mr.Bytes(), other.Bytes())
			}
		})
	}
}

// TestReadyResponse checks that the answer to a ready message of the kind Read, which has no sink,
// is handled in its turn like any other answer, and that later Reads have the next numbers. [I-45]
// [I-46] [MPA2-5-2] [DDP-4.3-6]
func TestReadyResponse(t *testing.T) {
	reply := usualReply
	reply.Conn.RTR = mpa.RTRRead
	p, q := asResponderWith(t, &Config{Interop: Interop{NoNudge: true}}, reply)
	p.next()
	sink := make([]byte, 4)
	q.Post(readInto(1, sink))
	u := p.next()
	if h, _, err := ddp.ParseUntagged(u); err != nil || h.MSN != 2 {
		t.Errorf("first Read %x", u)
	}
	p.ulpdu(tag(rdmap.ReadResponse, 0, 0, true, nil))
	p.respond(u, []byte("data"))
	if c := wantOK(t, q.SendCQ()); c.ID != 1 || string(sink) != "data" {
		t.Errorf("%+v, %q", c, sink)
	}
	if n := q.SendCQ().Len(); n != 0 {
		t.Errorf("%d completions are left", n)
	}
}

// TestServing checks that the peer's Reads are answered in order, without the ULP, and return the
// bytes of earlier Writes. The ULP must not be notified of the Writes either. [RDMAP-3.2-4]
// [RDMAP-5.1-2] [RDMAP-5.2.1-3] [RDMAP-5.2.1-4] [RDMAP-5.2.1-8] [RDMAP-5.2.1-10] [RDMAP-5.2.1-11]
// [RDMAP-5.2.1-12] [RDMAP-5.2.2-2] [RDMAP-5.2.2-5] [RDMAP-5.2.2-6] [RDMAP-5.5-7] [RDMAP-5.5-14]
// [RDMAP-5.5-17] [RDMAP-4.4-2] [RDMAP-4.4-3] [RDMAP-3.2-6] [RDMAP-6.1-2] [MPA2-9.1-2] [MPA2-9.1-10]
// [I-20]
func TestServing(t *testing.T) {
	p, q := asInitiator(t, &Config{Interop: Interop{FPDUSize: 32000}})
	mr, _ := q.Register(make([]byte, 300000), RemoteRead|RemoteWrite)
	n := 0
	for round := range 200 {
		p.ulpdu(tag(rdmap.Write, mr.STag(), 5, true, []byte{byte(round)}))
		var want []rdmap.ReadRequest
		for i := range q.IRD() { // as many requests as agreed
			r := rdmap.ReadRequest{SinkSTag: uint32(round), SinkTO: uint64(i) * 3, Size: uint32(i),
				SourceSTag: mr.STag(), SourceTO: 5}
			n++
			p.ulpdu(readReq(ddp.MSN(n), r))
			want = append(want, r)
		}
		for _, r := range want {
			op, head, body := p.message(q.mulpdu())
			if op != rdmap.ReadResponse || binary.BigEndian.Uint32(head[2:]) != r.SinkSTag ||
				binary.BigEndian.Uint64(head[6:]) != r.SinkTO ||
				len(body) != int(r.Size) || len(body) > 0 && body[0] != byte(round) {
				t.Fatalf("%v %x %x, want %+v", op, head, body, r)
			}
		}
	}
	p.ulpdu(readReq(ddp.MSN(n+1), rdmap.ReadRequest{SinkSTag: 9, SinkTO: 1, Size: 300000, SourceSTag: mr.STag()}))
	want := make([]byte, 300000)
	want[5] = 199
	if _, _, body := p.message(q.mulpdu()); !bytes.Equal(body, want) {
		t.Error("long Read: wrong data")
	}
	if _, ok := q.RecvCQ().Poll(); ok {
		t.Error("the ULP saw a Read")
	}
	if s := q.Stats(); s.ServedReads != uint64(n+1) {
		t.Errorf("%d Reads served, want %d", s.ServedReads, n+1)
	}
}

// A lateConn is a connection whose Write may return long after the peer has the bytes.
type lateConn struct {
	net.Conn
	// Write takes one channel from held, if there is one, and returns when that channel is closed.
	held chan chan struct{}
}

func (c lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	select {
	case gate := <-c.held:
		<-gate
	default:
	}
	return n, err
}

// hold delays the return of the next Write of a lateConn until release is called, or the test ends.
func hold(t *testing.T, held chan chan struct{}) (release func()) {
	gate := make(chan struct{})
	held <- gate
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return release
}

// TestReadInside checks that a Read from the middle of a region gets exactly the bytes it asks for,
// in however many segments. [I-43] [I-61]
func TestReadInside(t *testing.T) {
	for _, size := range []int{0, 1442} { // with 1442, many short segments are copied together
		a, b := connect(t, nil, &Config{Interop: Interop{FPDUSize: size}})
		src := pattern(1<<20, 3)
		mr, err := b.Register(src, RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{100, 3000, 400_000} {
			dst := make([]byte, n)
			r := readInto(1, dst)
			r.Remote = RemoteAddr{STag: mr.STag(), TO: mr.TO() + 600_000}
			if err := a.Post(r); err != nil {
				t.Fatal(err)
			}
			if wantOK(t, a.SendCQ()); !bytes.Equal(dst, src[600_000:][:n]) {
				t.Errorf("segments of %d: of %d bytes others came", size, n)
			}
		}
	}
}

// TestReadPlace checks that a peer that has received the last segment of an answer may send another
// request, although the call that sent the segment has not returned. [RDMAP-6.1-2] [SEC-6.4.3.3-3]
// [I-20]
func TestReadPlace(t *testing.T) {
	held := make(chan chan struct{}, 1)
	cfg := &Config{IRD: 1, MaxIRD: 1, Interop: Interop{FPDUSize: 1000},
		WrapConn: func(nc net.Conn) net.Conn { return lateConn{nc, held} }}
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
	p.ulpdu(tag(rdmap.Write, 1, 0, true, nil))
	mr, _ := q.Register(pattern(5000, 1), RemoteRead)
	ask := func(msn ddp.MSN) {
		p.ulpdu(readReq(msn, rdmap.ReadRequest{SinkSTag: uint32(msn), Size: 5000, SourceSTag: mr.STag()}))
	}
	release := hold(t, held)
	ask(1)
	if _, _, body := p.message(q.mulpdu()); !bytes.Equal(body, mr.Bytes()) {
		t.Error("first Read: wrong data")
	}
	ask(2)
	for deadline := time.Now().Add(patience); (q.Stats().ReceivedFPDUs < 3 || len(held) != 0) &&
		q.Err() == nil && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if q.IRD() != 1 || q.Err() != nil || len(held) != 0 {
		t.Errorf("IRD %d, %v, %d writes held", q.IRD(), q.Err(), 1-len(held))
	}
	release()
	if _, _, body := p.message(q.mulpdu()); !bytes.Equal(body, mr.Bytes()) {
		t.Error("second Read: wrong data")
	}
}

// TestAtomicPlace checks that Atomics have slots of their own besides the slots of Reads, even
// while as many answers of each kind are being sent. [I-64] [RDMAPX-5.2.1-7] [RDMAPX-5.2.1-8]
func TestAtomicPlace(t *testing.T) {
	held := make(chan chan struct{}, 1)
	cfg := &Config{IRD: 1, MaxIRD: 1, Atomic: true, WrapConn: func(nc net.Conn) net.Conn { return lateConn{nc, held} }}
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
	p.ulpdu(tag(rdmap.Write, 1, 0, true, nil))
	mr, _ := q.Register(make([]byte, 8), RemoteAtomic|RemoteRead)
	ask := func(msn ddp.MSN) {
		p.ulpdu(readReq(msn, rdmap.ReadRequest{Size: 8, SourceSTag: mr.STag()}),
			seg(rdmap.AtomicRequestOp, 1, msn+1, 0, true, rdmap.NewFetchAdd(mr.STag(), 0, 1, 0).Append(nil)))
	}
	answered := func() {
		t.Helper()
		for range 2 {
			if u := p.next(); u[1]&15 != byte(rdmap.ReadResponse) && u[1]&15 != byte(rdmap.AtomicResponseOp) {
				t.Fatalf("%x", u)
			}
		}
	}
	// Both requests arrive while a write is held, so the next write contains both answers.
	first := hold(t, held)
	if err := q.Post(SendWR{}); err != nil {
		t.Fatal(err)
	}
	p.next()
	ask(1)
	queuedRequests(t, q, 2)
	second := hold(t, held)
	first()
	answered()
	ask(3) // the write that sent the answers has not returned
	queuedRequests(t, q, 4)
	second()
	answered()
	if q.Err() != nil || q.Stats().ServedAtomics != 2 {
		t.Errorf("%v, %d Atomics", q.Err(), q.Stats().ServedAtomics)
	}
}

// TestMovingSource reads and sends memory while its owner changes it. The peer must get current bytes,
// and never a CRC error. [I-61] [RDMAP-5.5-8]
func TestMovingSource(t *testing.T) {
	if raceEnabled {
		t.Skip("memory is changed while it is read, on purpose: the race detector says so")
	}
	const size = 200000
	for name, request := range map[string]func(t *testing.T, from, to *QueuePair, moving []byte) (*QueuePair, SendWR){
		"Read": func(t *testing.T, from, to *QueuePair, moving []byte) (*QueuePair, SendWR) {
			mr, _ := from.Register(moving, RemoteRead)
			return to, SendWR{Op: OpRead, SG: []SGE{Buf(make([]byte, size))}, Remote: mr.Remote(0)}
		},
		"volatile Write": func(t *testing.T, from, to *QueuePair, moving []byte) (*QueuePair, SendWR) {
			mr, _ := to.Register(make([]byte, size), RemoteWrite)
			return from, SendWR{Op: OpWrite, SG: []SGE{Buf(moving)}, Remote: mr.Remote(0), Volatile: true}
		},
		"Write from a guarded region": func(t *testing.T, from, to *QueuePair, moving []byte) (*QueuePair, SendWR) {
			mr, _ := to.Register(make([]byte, size), RemoteWrite)
			mapped, _ := from.Register(moving, LocalOnly, RegionOptions{Guarded: true})
			return from, SendWR{Op: OpWrite, SG: []SGE{mapped.SGE(0, size)}, Remote: mr.Remote(0)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := connect(t, nil, nil)
			b := make([]byte, size)
			q, wr := request(t, from, to, b)
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for n := 0; ; n++ {
					for i := n % 64; i < len(b); i += 64 {
						b[i]++
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			defer func() { close(stop); <-done }()
			for start := time.Now(); time.Since(start) < 200*time.Millisecond; { // long enough for both to run
				if err := q.Post(wr); err != nil {
					t.Fatal(err, q.Err())
				}
				wantOK(t, q.SendCQ())
			}
			to.PostRecv(RecvWR{})
			if err := from.Post(SendWR{}); err != nil {
				t.Fatal(err, from.Err())
			}
			wantOK(t, to.RecvCQ()) // all earlier FPDUs were accepted too
		})
	}
}

// TestFairness checks that answers to the peer alternate with our own messages, as whole messages,
// and that Sends are delivered while answers wait. [I-54] [RDMAP-5.5-15] [I-52]
func TestFairness(t *testing.T) {
	p, q := asInitiator(t, &Config{Interop: Interop{FPDUSize: 64766}})
	big := make([]byte, 3<<20)
	mr, _ := q.Register(big, RemoteRead)
	for i := ddp.MSN(1); i <= 3; i++ {
		p.ulpdu(readReq(i, rdmap.ReadRequest{Size: 3 << 20, SourceSTag: mr.STag()}))
	}
	for range 3 {
		q.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(big)}})
	}
	q.PostRecv(RecvWR{})
	p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil)) // the peer has read nothing so far
	wantOK(t, q.RecvCQ())
	reads, writes := 0, 0
	for range 6 {
		switch op, _, _ := p.message(q.mulpdu()); op {
		case rdmap.ReadResponse:
			reads++
		case rdmap.Write:
			writes++
		}
		if reads-writes > 2 || writes-reads > 2 {
			t.Errorf("%d answers, %d messages of ours", reads, writes)
		}
	}
}

// TestSendCompletes checks that a Send completes when TCP has taken all of it, whether or not the
// peer has read it, and not before. [DDP-5.4-1] [RDMAP-5.5-4] [RDMAP-5.5-11] [RDMAP-5.5-10]
// [RDMAP-5.1-5] [RDMAP-5.3-9] [DDP-5.3-1] [DDP-4.3-6] [DDP-4.3-7]
func TestSendCompletes(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true, FPDUSize: 64766}})
	q.Post(SendWR{ID: 1, SG: []SGE{Buf([]byte("small"))}})
	if c := wantOK(t, q.SendCQ()); c.ID != 1 {
		t.Errorf("%+v", c)
	}
	big := make([]byte, 16<<20)
	q.Post(SendWR{ID: 2, SG: []SGE{Buf(big)}})
	for i := range 20 {
		q.Post(SendWR{ID: 3 + uint64(i), Op: []Op{OpWrite, OpSend}[i%2], SG: []SGE{Buf([]byte{byte(i)})}})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if c, err := q.SendCQ().Wait(ctx); err == nil {
		t.Errorf("%+v although the socket is full", c)
	}
	go func() {
		for i := range 22 {
			c, err := q.SendCQ().Wait(context.Background())
			if err != nil || c.ID != 2+uint64(i) && i < 21 {
				t.Errorf("%+v, %v", c, err)
			}
			if i == 20 {
				return
			}
		}
	}()
	p.message(q.mulpdu())
	_, _, body := p.message(q.mulpdu())
	if len(body) != len(big) {
		t.Errorf("%d bytes", len(body))
	}
	msn := uint32(3)
	for i := range 20 { // messages arrive in the order of posting
		op, head, body := p.message(q.mulpdu())
		if len(body) != 1 || body[0] != byte(i) || (op == rdmap.Write) != (i%2 == 0) {
			t.Errorf("message %d: %v %x", i, op, body)
		}
		if op == rdmap.Send {
			if binary.BigEndian.Uint32(head[10:]) != msn {
				t.Errorf("MSN %x, want %d", head[10:14], msn)
			}
			msn++
		}
	}
}

// TestPostNow checks that a request that TCP takes at once has no completion, and that any other
// request has a completion, although Unsignaled is set. Both kinds must keep the order of posting.
func TestPostNow(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{FPDUSize: 16 << 10}, SendDepth: 3})
	send := func(id byte, n int) bool {
		t.Helper()
		sent, err := (*stream)(q).PostNow(SendWR{ID: uint64(id), Unsignaled: true, SG: []SGE{Buf(bytes.Repeat([]byte{id}, n))}})
		if err != nil {
			t.Fatalf("%d: %v", id, err)
		}
		return sent
	}
	q.Post(SendWR{ID: 1, SG: []SGE{Buf([]byte{1})}, More: true})
	if !send(2, 5000) {
		t.Error("not sent although nothing is in the way")
	}
	if c := wantOK(t, q.SendCQ()); c.ID != 1 {
		t.Errorf("%+v", c)
	}
	for i, n := range []int{1, 5000} {
		if _, _, body := p.message(q.mulpdu()); len(body) != n || body[0] != byte(i+1) {
			t.Errorf("message of %d bytes", len(body))
		}
	}
	const big = 16 << 20
	if send(3, big) || send(4, 1) {
		t.Error("sent although the socket is full")
	}
	if c, ok := q.SendCQ().Poll(); ok {
		t.Errorf("%+v although the socket is full", c)
	}
	for i, n := range []int{big, 1} {
		if _, _, body := p.message(q.mulpdu()); len(body) != n || body[0] != byte(i+3) {
			t.Errorf("message of %d bytes", len(body))
		}
		if c := wantOK(t, q.SendCQ()); c.ID != uint64(i+3) {
			t.Errorf("%+v", c)
		}
	}
	if n := q.sends.used.Load(); n != 0 {
		t.Errorf("%d places in use", n)
	}
	for _, c := range []struct {
		wr   SendWR
		want error
	}{
		{SendWR{Op: 99}, ErrInvalid},
		{SendWR{SG: make([]SGE, MaxSGE+1)}, ErrInvalid},
		{SendWR{Inline: true, SG: []SGE{Buf(make([]byte, MaxInline+1))}}, ErrTooLong},
	} {
		if sent, err := (*stream)(q).PostNow(c.wr); sent || !errors.Is(err, c.want) {
			t.Errorf("%t, %v, want %v", sent, err, c.want)
		}
	}
	for range 3 {
		q.Post(SendWR{})
		p.next()
	}
	if sent, err := (*stream)(q).PostNow(SendWR{}); sent || !errors.Is(err, ErrQueueFull) {
		t.Errorf("%t, %v", sent, err)
	}
	for range 3 {
		wantOK(t, q.SendCQ())
	}
	q.CloseWrite()
	if sent, err := (*stream)(q).PostNow(SendWR{}); sent || !errors.Is(err, ErrClosed) {
		t.Errorf("%t, %v", sent, err)
	}
}

// TestManyTogether checks that short FPDUs are sent together, even if they need several system
// calls, and even if each consists of separate pieces of memory. [MPA-5.1-4] [RDMAP-3.1-1] [I-52]
func TestManyTogether(t *testing.T) {
	const piece = 1025
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true, FPDUSize: 20000}, SendDepth: 1024})
	data := pattern(MaxSGE*piece, 1)
	for _, pieces := range []int{0, 1, MaxSGE} {
		const n = 150
		var sg []SGE
		for i := range pieces {
			sg = append(sg, Buf(data[i*piece:][:piece]))
		}
		if pieces == 0 {
			sg = []SGE{Buf(data[:1000])} // short enough to be copied
		}
		want := data[:max(1000, pieces*piece)]
		for i := range n {
			if err := q.Post(SendWR{ID: uint64(i), More: true, SG: sg}); err != nil {
				t.Fatal(err)
			}
		}
		q.Flush()
		for i := range n {
			if op, _, body := p.message(q.mulpdu()); op != rdmap.Send || !bytes.Equal(body, want) {
				t.Fatalf("%d pieces, message %d: %v of %d bytes, or others", pieces, i, op, len(body))
			}
		}
		for i := range n {
			if c := wantOK(t, q.SendCQ()); c.ID != uint64(i) {
				t.Fatalf("%+v as completion %d", c, i)
			}
		}
	}
}

// TestPosting tests limits, batches, More, Unsignaled, Inline, and the errors of Post.
// [RDMAP-3.2-1] [I-34]
func TestPosting(t *testing.T) { inBubble(t, testPosting) }

func testPosting(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, SendDepth: 4, RecvDepth: 2})
	for i := range 4 {
		if err := q.Post(SendWR{ID: uint64(i), More: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Post(SendWR{}); !errors.Is(err, ErrQueueFull) {
		t.Error(err)
	}
	p.silence() // because of More, nothing is sent so far
	q.Flush()
	for range 4 {
		p.next()
	}
	if err := q.Post(SendWR{}); !errors.Is(err, ErrQueueFull) { // the completions were not polled
		t.Error(err)
	}
	for i := range 4 {
		if c := wantOK(t, q.SendCQ()); c.ID != uint64(i) {
			t.Errorf("%+v", c)
		}
	}
	n, err := q.PostBatch(make([]SendWR, 6))
	if n != 4 || !errors.Is(err, ErrQueueFull) {
		t.Errorf("%d, %v", n, err)
	}
	for range 4 {
		p.next()
		wantOK(t, q.SendCQ())
	}
	for i := range 20 { // unsignaled requests have no completion, but their slots become free
		if err := q.Post(SendWR{ID: 99, Unsignaled: true}); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		p.next()
		for deadline := time.Now().Add(patience); q.sends.used.Load() > 0 && time.Now().Before(deadline); {
			time.Sleep(100 * time.Microsecond)
		}
	}
	if c, ok := q.SendCQ().Poll(); ok {
		t.Errorf("%+v", c)
	}
	b := []byte("inline")
	q.Post(SendWR{Inline: true, More: true, SG: []SGE{Buf(b[:2]), Buf(b[2:])}})
	copy(b, "xxxxxx")
	q.SendCQ().Poll() // polling sends requests that More has delayed
	if u := p.next(); string(u[18:]) != "inline" {
		t.Errorf("%q", u[18:])
	}
	wantOK(t, q.SendCQ())

	mr, _ := q.Register(make([]byte, 10), LocalOnly)
	foreign, _ := q.mem.dev.NewPD().Register(make([]byte, 10), LocalOnly)
	gone, _ := q.Register(make([]byte, 10), LocalOnly)
	gone.Close()
	_, q2 := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	others, _ := q2.Register(make([]byte, 10), LocalOnly)
	for i, c := range []struct {
		wr   SendWR
		want error
	}{
		{SendWR{SG: []SGE{mr.SGE(5, 6)}}, ErrInvalid},
		{SendWR{SG: []SGE{mr.SGE(11, 0)}}, ErrInvalid},
		{SendWR{SG: []SGE{{Region: mr, Off: 1<<64 - 1, Len: 2}}}, ErrInvalid},
		{SendWR{SG: []SGE{foreign.SGE(0, 1)}}, ErrInvalid},
		{SendWR{SG: []SGE{others.SGE(0, 1)}}, ErrInvalid},
		{SendWR{SG: []SGE{gone.SGE(0, 1)}}, ErrRegistered},
		{SendWR{SG: make([]SGE, MaxSGE+1)}, ErrInvalid},
		{SendWR{Inline: true, SG: []SGE{Buf(make([]byte, MaxInline+1))}}, ErrTooLong},
		{SendWR{Op: OpLocalInvalidate, SG: []SGE{Buf(b)}}, ErrInvalid},
		{SendWR{Op: OpRecv}, ErrInvalid},
		{SendWR{Op: 99}, ErrInvalid},
	} {
		if err := q.Post(c.wr); !errors.Is(err, c.want) {
			t.Errorf("%d: %v, want %v", i, err, c.want)
		}
	}
	if err := q.PostRecv(RecvWR{SG: []SGE{mr.SGE(5, 6)}}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := q.PostRecv(RecvWR{SG: make([]SGE, MaxSGE+1)}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	q.PostRecv(RecvWR{})
	q.PostRecv(RecvWR{})
	if err := q.PostRecv(RecvWR{}); !errors.Is(err, ErrQueueFull) {
		t.Error(err)
	}
	if q.life.Load() != lifeRunning { // a mistake of the caller must not end the stream
		t.Error(q.Err())
	}
	if big := make([]SGE, 8); true { // 2^32 bytes: one buffer eight times [DDP-5.2-2] [DDP-1.2-2]
		b := make([]byte, 1<<29)
		for i := range big {
			big[i] = Buf(b)
		}
		if err := q.Post(SendWR{SG: big}); !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
	}
}

// TestManyPosters posts from many goroutines. No message may be lost or doubled, and the messages
// of each poster must keep their order. [DDP-5.3-5] [DDP-5.3-6] [RDMAP-5.3-5]
func TestManyPosters(t *testing.T) {
	a, b := connect(t, nil, nil)
	const posters, each = 8, 300
	bufs := make([][]byte, 128)
	for i := range bufs {
		bufs[i] = make([]byte, 8)
		b.PostRecv(RecvWR{ID: uint64(i), SG: []SGE{Buf(bufs[i])}})
	}
	var wg sync.WaitGroup
	credit := make(chan struct{}, 64) // limits the messages that are sent and not received
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				credit <- struct{}{}
				m := make([]byte, 8)
				binary.BigEndian.PutUint32(m, uint32(p))
				binary.BigEndian.PutUint32(m[4:], uint32(i))
				for {
					err := a.Post(SendWR{Unsignaled: true, Inline: true, SG: []SGE{Buf(m)},
						More: i%3 == 0 && i+1 < each})
					if err == nil {
						break
					}
					if !errors.Is(err, ErrQueueFull) {
						t.Error(err)
						return
					}
					a.Flush()
					time.Sleep(time.Millisecond)
				}
			}
			a.Flush()
		})
	}
	var next [posters]uint32
	flush := time.AfterFunc(50*time.Millisecond, a.Flush)
	defer flush.Stop()
	for range posters * each {
		a.Flush()
		c := wantOK(t, b.RecvCQ())
		m := bufs[c.ID]
		p, i := binary.BigEndian.Uint32(m), binary.BigEndian.Uint32(m[4:])
		if i != next[p] {
			t.Fatalf("poster %d: message %d, want %d", p, i, next[p])
		}
		next[p]++
		b.PostRecv(RecvWR{ID: c.ID, SG: []SGE{Buf(m)}})
		<-credit
	}
	wg.Wait()
}

// TestSolicited checks that an armed queue signals once, at the first event that it was armed for.
// Zero-length Sends use up receives. [RDMAP-5.3-2] [RDMAP-5.3-11] [RDMAP-5.3-6] [RDMAP-3.2-2]
// [I-72]
func TestSolicited(t *testing.T) {
	p, q := asInitiator(t, nil)
	for range 4 {
		q.PostRecv(RecvWR{})
	}
	cq := q.RecvCQ()
	signal := func(want bool) {
		t.Helper()
		d := 5 * time.Millisecond
		if want {
			d = patience
		}
		select {
		case <-cq.Events():
			if !want {
				t.Error("signal")
			}
		case <-time.After(d):
			if want {
				t.Error("no signal")
			}
		}
	}
	cq.Arm(true)
	p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil))
	wantOK(t, cq)
	signal(false)
	p.ulpdu(seg(rdmap.SendSE, 0, 2, 0, true, nil))
	signal(true)
	if c := wantOK(t, cq); !c.Solicited {
		t.Errorf("%+v", c)
	}
	p.ulpdu(seg(rdmap.SendSE, 0, 3, 0, true, nil)) // the queue was armed for one signal only
	wantOK(t, cq)
	signal(false)
	cq.Arm(false)
	p.ulpdu(seg(rdmap.Send, 0, 4, 0, true, nil))
	signal(true)
	wantOK(t, cq)
	q.PostRecv(RecvWR{})
	cq.Arm(true)
	q.Abort() // a failed request always signals
	signal(true)
	if c, ok := cq.Poll(); !ok || c.Status != StatusFlushed || !errors.Is(c.Err(), ErrFlushed) {
		t.Errorf("%+v", c)
	}
}

// TestArmPolled checks that an armed queue signals without polling, also on a stream with
// Config.Polled. [RDMAP-5.3-6] [I-72]
func TestArmPolled(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, Polled: true})
	q.PostRecv(RecvWR{ID: 1})
	q.RecvCQ().Arm(true)
	p.ulpdu(seg(rdmap.SendSE, 0, 1, 0, true, nil))
	testkit.Await(t, "the signal", q.RecvCQ().Events())
	if c, ok := q.RecvCQ().Poll(); !ok || c.ID != 1 {
		t.Errorf("%+v, %t", c, ok)
	}
}

// TestPostBatch checks that a batch is posted up to the first refused request, and that the
// requests after it occupy no slots of the queue.
func TestPostBatch(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, SendDepth: 100})
	wrs := make([]SendWR, 70)
	for i := range wrs {
		wrs[i] = SendWR{ID: uint64(i), SG: []SGE{Buf([]byte{byte(i)})}}
	}
	take := func(n int) {
		t.Helper()
		for i := range n {
			if u := p.next(); u[18] != byte(i) {
				t.Fatalf("message %d is %x", i, u[18:])
			}
			if c := wantOK(t, q.SendCQ()); c.ID != uint64(i) {
				t.Fatalf("%+v as completion %d", c, i)
			}
		}
		if n := q.sends.used.Load(); n != 0 {
			t.Fatalf("%d places in use", n)
		}
	}
	if n, err := q.PostBatch(wrs); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	take(len(wrs))
	wrs[37].Op = 99
	if n, err := q.PostBatch(wrs); n != 37 || !errors.Is(err, ErrInvalid) {
		t.Fatal(n, err)
	}
	take(37)
	wrs[37].Op = OpSend
	wrs[0].Inline, wrs[1].Inline = true, true
	wrs[1].SG[0] = Buf(make([]byte, MaxInline+1))
	if n, err := q.PostBatch(wrs); n != 1 || !errors.Is(err, ErrTooLong) {
		t.Fatal(n, err)
	}
	take(1)
	if n, err := q.PostBatch(nil); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	q.CloseWrite()
	if n, err := q.PostBatch(wrs); n != 0 || !errors.Is(err, ErrClosed) {
		t.Fatal(n, err)
	}
}
