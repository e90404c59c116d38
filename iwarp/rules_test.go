package iwarp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/frameio"
	"viaduct/internal/placer"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// within runs f, and fails the test if f does not return within patience.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s did not return", what)
	}
}

// receivedFPDUs waits until q has received n FPDUs.
func receivedFPDUs(t *testing.T, q *QueuePair, n uint64) {
	t.Helper()
	for end := timeUp(); q.Stats().ReceivedFPDUs < n; time.Sleep(time.Millisecond) {
		if end() {
			t.Fatalf("%d FPDUs received, want %d", q.Stats().ReceivedFPDUs, n)
		}
	}
}

// queuedRequests waits until n requests of the peer wait for their answers, or for the return of the
// write that sends them. A received FPDU is counted before its request is queued.
func queuedRequests(t *testing.T, q *QueuePair, n int) {
	t.Helper()
	for end := timeUp(); q.inbound.Len() < n; time.Sleep(time.Millisecond) {
		if end() {
			t.Fatalf("%d requests queued, want %d; %v", q.inbound.Len(), n, q.Err())
		}
	}
}

// TestAtomicRevoked deregisters the word of an Atomic Operation after the request was checked and
// before its turn. The operation must not be performed, and the Terminate must contain the
// unchanged request. [RDMAP-4.8-12] [SEC-6.2.2-2] [SEC-6.3.3-1] [RDMAPX-5-1] [I-43] [I-65] [I-67]
func TestAtomicRevoked(t *testing.T) {
	p, q := asInitiator(t, extended())
	const size = 16 << 20 // more than the sockets hold, so that the Atomic after the Read waits
	big, _ := q.Register(make([]byte, size), RemoteRead)
	mem := make([]byte, 8)
	mr, _ := q.Register(mem, RemoteAtomic)
	req := seg(rdmap.AtomicRequestOp, 1, 2, 0, true, rdmap.NewFetchAdd(mr.STag(), 0, 1, 0).Append(nil))
	p.ulpdu(readReq(1, rdmap.ReadRequest{Size: size, SourceSTag: big.STag()}), req)
	queuedRequests(t, q, 2)
	if err := mr.Close(); err != nil {
		t.Fatal(err)
	}
	p.message(q.mulpdu())
	p.terminate(append([]byte{0x01, 0, 0xc0, 0, 0, byte(len(req))}, req[:ddp.UntaggedLen]...))
	wantTerminate(t, ended(t, q), false, 0, 1, 0)
	if !bytes.Equal(mem, make([]byte, 8)) || q.Stats().ServedAtomics != 0 {
		t.Errorf("the operation was performed: %x", mem)
	}
}

// TestReadSink checks that a Read into unregistered memory names its sink by a separate number,
// which other messages cannot use as an STag. [RDMAP-5.2-1] [I-58]
func TestReadSink(t *testing.T) {
	p, q := asResponder(t, nil)
	mr, _ := q.Register(make([]byte, 16), LocalOnly)
	for range 2 {
		q.Post(readInto(1, make([]byte, 4)))
	}
	q.Post(SendWR{Op: OpRead, SG: []SGE{mr.SGE(4, 8)}, Remote: RemoteAddr{STag: 77}})
	q.Post(SendWR{Op: OpRead, SG: []SGE{mr.SGE(0, 4), mr.SGE(8, 4)}, Remote: RemoteAddr{STag: 77}})
	seen := map[uint32]bool{0: true, mr.STag(): true}
	for i := range 4 {
		u := p.next()
		h, n, err := ddp.ParseUntagged(u)
		r, _, err2 := rdmap.ParseReadRequest(u[n:])
		if err != nil || err2 != nil || h != rdmap.ReadRequestOp.UntaggedHeader(ddp.MSN(i+1), 0, true, 0) {
			t.Fatalf("%x: %v, %v", u, err, err2)
		}
		if i == 2 { // the sink is one piece of a region
			if r.SinkSTag != mr.STag() || r.SinkTO != mr.TO()+4 {
				t.Errorf("sink %#x at %d, want %#x", r.SinkSTag, r.SinkTO, mr.STag())
			}
			continue
		}
		if seen[r.SinkSTag] || q.mem.dev.reg.Lookup(r.SinkSTag) != nil {
			t.Errorf("sink of Read %d is %#x, which is in use", i, r.SinkSTag)
		}
		seen[r.SinkSTag] = true
	}
}

// TestFaultBehindClose finds a fault after our direction has ended in order. No Terminate can be
// sent then, and the end of the stream must not wait for one. [I-38] [I-34] [I-33] [RDMAP-6.2.1-1]
func TestFaultBehindClose(t *testing.T) {
	p, q := asResponder(t, nil)
	q.CloseWrite()
	if u, err := p.tryNext(); err != io.EOF {
		t.Fatalf("%x, %v", u, err)
	}
	p.ulpdu(tag(rdmap.Write, 1, 0, true, []byte("x")))
	wantTerminate(t, ended(t, q), false, 1, 1, 0)
	if q.life.term.Load() != nil {
		t.Error("a Terminate is to be sent after FIN")
	}
}

// TestFaultBehindAbort finds a fault after an Abort, possibly before the reset is sent. The fault
// must not be reported to the peer.
func TestFaultBehindAbort(t *testing.T) {
	_, q := asResponder(t, nil)
	q.Abort()
	q.life.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
	if q.life.term.Load() != nil {
		t.Error("a Terminate is to be sent before the reset")
	}
	if err := ended(t, q); !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want the first cause", err)
	}
}

// TestEndedOnce checks that an ended stream returns its share of a completion queue exactly once,
// whether or not it is closed as well. [RDMAP-6.2-1] [I-33]
func TestEndedOnce(t *testing.T) {
	dev := NewDevice(DeviceConfig{})
	cq, err := dev.NewCQ(100)
	if err != nil {
		t.Fatal(err)
	}
	p, q := asResponder(t, &Config{Device: dev, SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 4})
	p.ulpdu(tag(rdmap.Write, 1, 0, true, []byte("x")))
	ended(t, q)
	p.c.Close() // otherwise the first Close would wait for drainTimeout
	for range 2 {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		cq.mu.Lock()
		if cq.reserved != 0 {
			t.Errorf("%d completions are reserved", cq.reserved)
		}
		cq.mu.Unlock()
	}
}

// TestQuietEnd ends a stream that may not send a Terminate and has unread input after the fault.
// The stream must end with FIN: closing the socket at once would reset the connection. [I-36]
// [I-38] [MPA-8-2] [RDMAP-6.2.1-1]
func TestQuietEnd(t *testing.T) {
	p, q := asSilentInitiator(t, nil, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
	b := p.enc.Append(nil, tag(rdmap.Write, 1, 0, true, nil))
	b[len(b)-1] ^= 1
	p.raw(append(b, make([]byte, 200<<10)...))
	p.fin()
	wantTerminate(t, ended(t, q), false, 2, 0, 2)
	if q.life.term.Load() != nil {
		t.Error("a Terminate is to be sent before a first FPDU")
	}
}

// TestZeroCRC sends FPDUs with a CRC of zero. The error must mention the Terminate of a failed
// start-up only if the FPDU is the first one and can be a Terminate. In every case it is a CRC
// error. [I-31] [MPA-8-2]
func TestZeroCRC(t *testing.T) {
	term := seg(rdmap.TerminateOp, 2, 1, 0, true, []byte{0x02, 7, 0, 0})
	var enc mpa.Encoder // without CRC, the Encoder writes zeros
	wrong := enc.Append(nil, term)
	wrong[len(wrong)-1] = 1
	for _, c := range []struct {
		name  string
		b     []byte
		looks bool
		code  uint8
	}{
		{"Terminate", enc.Append(nil, term), true, 2},
		{"Terminate with a wrong CRC", wrong, false, 2},
		{"Terminate cut short", enc.Append(nil, term[:len(term)-1]), false, 2},
		{"header cut short", enc.Append(nil, term[:ddp.UntaggedLen-1]), false, 2},
		{"Send", enc.Append(nil, seg(rdmap.Send, 0, 1, 0, true, []byte{0x02, 7, 0, 0})), false, 2},
		{"length limit", []byte{1001 >> 8, 1001 & 0xff}, false, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asSilentInitiator(t, &Config{Interop: Interop{MaxFPDU: 1000}},
				mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
			p.raw(c.b)
			p.fin()
			err := ended(t, q)
			wantTerminate(t, err, false, 2, 0, c.code)
			if strings.Contains(err.Error(), "looks like a Terminate") != c.looks {
				t.Errorf("error %q", err)
			}
		})
	}
	t.Run("later", func(t *testing.T) {
		p, q := asInitiator(t, nil)
		p.raw(enc.Append(nil, term))
		p.terminate([]byte{0x20, 2, 0, 0})
		if err := ended(t, q); strings.Contains(err.Error(), "looks like a Terminate") {
			t.Errorf("error %q", err)
		}
	})
}

// TestUnagreedSend checks that a zero-length Send is the ready message only if the two sides agreed
// on a Send as ready message. Otherwise it uses up a receive like any other Send. [I-08]
// [RDMAP-5.3-11] [MPA-7.1.2-15]
func TestUnagreedSend(t *testing.T) {
	p, q := asSilentInitiator(t, &Config{Prepare: func(q *QueuePair) error {
		return q.PostRecv(RecvWR{ID: 7})
	}}, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
	p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil))
	if c := wantOK(t, q.RecvCQ()); c.ID != 7 || c.Len != 0 {
		t.Errorf("%+v", c)
	}
}

// TestSetAccessKeepsScope checks that SetAccess does not change the scope of a region: one stream,
// or all streams of the domain. [SEC-6.3.3-1] [DDP-8.3-3] [RDMAP-8.1.1-2]
func TestSetAccessKeepsScope(t *testing.T) {
	pd := NewDevice(DeviceConfig{}).NewPD()
	cfg := &Config{PD: pd}
	_, owner := asInitiator(t, cfg)
	p, q := asInitiator(t, cfg)
	wide, _ := pd.Register(make([]byte, 8), LocalOnly)
	own, _ := owner.Register(make([]byte, 8), LocalOnly)
	wide.SetAccess(RemoteWrite)
	own.SetAccess(RemoteWrite)
	q.PostRecv(RecvWR{})
	p.ulpdu(tag(rdmap.Write, wide.STag(), 0, true, []byte("wide")), seg(rdmap.Send, 0, 1, 0, true, nil))
	wantOK(t, q.RecvCQ())
	if !bytes.HasPrefix(wide.Bytes(), []byte("wide")) {
		t.Errorf("%q", wide.Bytes())
	}
	p.ulpdu(tag(rdmap.Write, own.STag(), 0, true, []byte("own")))
	wantTerminate(t, ended(t, q), false, 1, 1, 2)
	if own.Bytes()[0] != 0 {
		t.Errorf("%q", own.Bytes())
	}
}

// TestCloseEarly checks that Close of a stream that was not started does not wait. [RDMAP-6.2-1]
// [I-33]
func TestCloseEarly(t *testing.T) {
	a, b := testkit.TCPPair(t)
	defer b.Close()
	cfg := &Config{CloseTimeout: time.Hour, Prepare: func(q *QueuePair) error {
		within(t, "Close", func() { q.Close() })
		return ErrClosed
	}}
	if _, err := Client(ctxt(t), a, cfg); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestPlainOnce checks that Dial makes no second connection if it uses revision 1 already.
// [MPA2-10-8] [I-02]
func TestPlainOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	count := make(chan int, 1)
	go func() {
		n := 0
		for {
			c, err := l.Accept()
			if err != nil {
				count <- n
				return
			}
			n++
			p := &peer{t: t, c: c}
			p.more()
			c.Close() // closes without an answer
		}
	}()
	if _, err := Dial(ctxt(t), l.Addr().String(), &Config{Interop: Interop{Plain: true, PlainFallback: true}}); err == nil {
		t.Error("start-up with a peer that closes")
	}
	l.Close()
	if n := <-count; n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestHints checks that codes that known peers use in their own way get a hint, and that other
// codes get none. [I-40] [I-75]
func TestHints(t *testing.T) {
	for _, c := range []struct {
		layer     rdmap.Layer
		typ, code uint8
		want      string
	}{
		{1, 2, 2, "no receive posted"},
		{0, 2, 7, "too many reads"},
		{1, 2, 1, ""}, {1, 2, 3, ""}, {1, 1, 2, ""},
		{0, 2, 6, ""}, {0, 1, 2, ""},
	} {
		got := hint(rdmap.Terminate{Layer: c.layer, Type: c.typ, Code: c.code})
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%d/%d/%02x: %q, want %q", c.layer, c.typ, c.code, got, c.want)
		}
	}
}

// A dumbConn is a connection whose descriptor is not available.
type dumbConn struct{ net.Conn }

func (dumbConn) SyscallConn() (syscall.RawConn, error) { return nil, errors.New("closed") }

// TestSegmentSizeUnknown checks that a connection whose segment size is unknown uses a size every
// path carries. [MPA-5.1-1] [MPA-5.1-2] [I-27]
func TestSegmentSizeUnknown(t *testing.T) {
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	if got := segmentSize(dumbConn{x}); got != segmentIPv4 {
		t.Errorf("segments of %d bytes", got)
	}
	for ip, want := range map[string]int{"192.0.2.1": segmentIPv4, "::ffff:192.0.2.1": segmentIPv4, "2001:db8::1": segmentIPv6} {
		if got := segmentSize(dumbConn{fakeAddr{x, &net.TCPAddr{IP: net.ParseIP(ip)}}}); got != want {
			t.Errorf("segments of %d bytes to %s, want %d", got, ip, want)
		}
	}
}

// TestRevokedUnderWay closes a region while a long segment for it is arriving. The stream must end
// with a Terminate that names the segment, and no more bytes may be placed. [I-22] [SEC-6.2.2-2]
// [DDP-8.3-1]
func TestRevokedUnderWay(t *testing.T) {
	p, q := asInitiator(t, &Config{Device: NewDevice(DeviceConfig{NoCRC: true})})
	mem := make([]byte, 60000)
	mr, _ := q.Register(mem, RemoteWrite)
	u := tag(rdmap.Write, mr.STag(), 0, true, bytes.Repeat([]byte{1}, len(mem)))
	b := p.enc.Append(nil, u)
	const first = 20000
	p.raw(b[:first])
	receivedFPDUs(t, q, 2) // the header was handled, so the segment has begun
	within(t, "Close of a region", func() { mr.Close() })
	before := bytes.Clone(mem)
	p.raw(b[first:])
	p.terminate(append([]byte{0x11, 0, 0xc0, 0, byte(len(u) >> 8), byte(len(u) & 0xff)}, u[:ddp.TaggedLen]...))
	wantTerminate(t, ended(t, q), false, 1, 1, 0)
	<-q.life.gone.C()
	if !bytes.Equal(mem, before) {
		t.Error("memory changed after it was revoked")
	}
}

// TestLongTerminate checks that the Terminate for a segment that was read into place in pieces
// contains the length of the whole segment, not of its staged part. [RDMAP-4.8-6]
func TestLongTerminate(t *testing.T) {
	const size = 60000
	cfg := &Config{RecvDepth: 4, Interop: Interop{NoNudge: true, StrictInvalidate: true}, Polled: true,
		Device: NewDevice(DeviceConfig{NoCRC: true})}
	p, q := asSilentInitiator(t, cfg, mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
	p.ulpdu(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
	if err := q.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, size))}}); err != nil {
		t.Fatal(err)
	}
	u := append(rdmap.SendInvalidate.UntaggedHeader(1, 0, true, 0x1234).Append(nil), make([]byte, size)...)
	f := p.enc.Append(nil, u)
	p.raw(f[:size/2])
	for begun, end := false, timeUp(); !begun; {
		if q.poll(); end() {
			t.Fatal("not begun")
		}
		q.link.fc.WithReceiver(func() { begun = q.rx.Open() })
	}
	p.raw(f[size/2:])
	for end := timeUp(); q.Err() == nil; {
		if q.poll(); end() {
			t.Fatal("the stream goes on")
		}
	}
	e, ok := errors.AsType[*TerminateError](q.Err())
	if !ok || e.SegLen != len(u) || !bytes.Equal(e.DDP, u[:ddp.UntaggedLen]) {
		t.Errorf("%v: %+v, wanted the length %d", q.Err(), e, len(u))
	}
}

// TestQuietDrain checks that an end without a Terminate leaves the peer time to close. Bytes that
// the peer sends until then must be read, so that no reset overtakes the bytes that were sent to
// the peer. [I-34] [I-36] [I-37] [I-38] [RDMAP-6.2.1-1] [RDMAP-5.4-6] [DDP-7-1]
func TestQuietDrain(t *testing.T) {
	drains := func(t *testing.T, p *peer, begun time.Time) {
		var err error
		for err == nil && time.Since(begun) < time.Minute {
			time.Sleep(drainTimeout / 10)
			_, err = p.c.Write(make([]byte, 1000))
		}
		if d := time.Since(begun); err == nil || d < drainTimeout || d > drainTimeout*11/10 {
			t.Errorf("the peer could write for %v, want %v; %v", d, drainTimeout, err)
		}
	}
	runInBubble(t, "behind our FIN", func(t *testing.T) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		q.CloseWrite()
		if u, err := p.tryNext(); err != io.EOF {
			t.Fatalf("%x, %v", u, err)
		}
		begun := time.Now()
		p.ulpdu(tag(rdmap.Write, 1, 0, true, []byte("x")))
		wantTerminate(t, ended(t, q), false, 1, 1, 0)
		drains(t, p, begun)
	})
	runInBubble(t, "behind a Terminate", func(t *testing.T) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		begun := time.Now()
		p.ulpdu(seg(rdmap.TerminateOp, 2, 1, 0, true, []byte("\x20\x02\x00\x00")))
		wantTerminate(t, ended(t, q), true, 2, 0, 2)
		drains(t, p, begun)
	})
}

// TestTerminateWaits checks that the Terminate waits for a full socket, after the FPDU that is
// being written, for a limited time. After that the connection must be reset. [RDMAP-6.2.1-1]
// [RDMAP-7-1] [RDMAP-7.1-1] [RDMAP-7.1-5] [DDP-6.2.2-3] [DDP-6.2.2-4] [I-35] [I-36] [I-41]
func TestTerminateWaits(t *testing.T) {
	full := func(t *testing.T) (*peer, *QueuePair) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		if err := q.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(make([]byte, 1<<20))}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.ulpdu(tag(rdmap.Write, 1, 0, true, []byte("x")))
		wantTerminate(t, ended(t, q), false, 1, 1, 0)
		return p, q
	}
	runInBubble(t, "the peer reads in time", func(t *testing.T) {
		p, q := full(t)
		time.Sleep(terminateTimeout * 9 / 10)
		for {
			if u := p.next(); !ddp.IsTagged(u[0]) {
				if h, n, err := ddp.ParseUntagged(u); err != nil || h.QN != rdmap.QueueTerminate ||
					!bytes.HasPrefix(u[n:], []byte{0x11, 0}) {
					t.Errorf("%x in place of a Terminate", u)
				}
				break
			}
		}
		p.fin()
		<-q.life.gone.C()
	})
	runInBubble(t, "the peer does not read", func(t *testing.T) {
		p, q := full(t)
		begun := time.Now()
		<-q.life.gone.C()
		if d := time.Since(begun); d < terminateTimeout || d > terminateTimeout+drainTimeout {
			t.Errorf("all was released after %v", d)
		}
		for {
			u, err := p.tryNext()
			if err != nil {
				break
			}
			if !ddp.IsTagged(u[0]) {
				t.Errorf("%x came", u)
			}
		}
	})
}

// TestTerminateBehindAtomics checks that a Terminate is accepted as the first message of its queue,
// whatever messages arrived on the other queues. [RDMAP-5.4-3] [RDMAP-5.4-4] [RDMAP-5.4-5]
func TestTerminateBehindAtomics(t *testing.T) {
	p, q := asResponder(t, extended())
	for i := range 3 {
		if err := q.Post(SendWR{Op: OpFetchAdd, Remote: RemoteAddr{STag: 9}, Atomic: Atomic{Data: 1}}); err != nil {
			t.Fatal(err)
		}
		r, _, err := rdmap.ParseAtomicRequest(p.next()[ddp.UntaggedLen:])
		if err != nil {
			t.Fatal(err)
		}
		p.ulpdu(seg(rdmap.AtomicResponseOp, 3, ddp.MSN(1+i), 0, true,
			rdmap.AtomicResponse{ID: r.ID, Value: 7}.Append(nil)))
		wantOK(t, q.SendCQ())
	}
	p.ulpdu(seg(rdmap.TerminateOp, 2, 1, 0, true, []byte("\x20\x02\x00\x00")))
	wantTerminate(t, ended(t, q), true, 2, 0, 2)
}

// TestLateFailure reports the loss of the connection to a stream that has ended. The state must
// stay the same, and no end of the peer's direction may be reported. [I-32] [RDMAP-6.2-2]
func TestLateFailure(t *testing.T) {
	for _, late := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe} {
		_, q := asResponder(t, nil)
		q.Abort()
		if err := ended(t, q); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		<-q.life.gone.C() // the requests are flushed before, which is a state of its own
		was := q.life.Load()
		(*engine)(q).Failed(late)
		if is := q.life.Load(); is != was {
			t.Errorf("%v: %v, was %v", late, is, was)
		}
		select {
		case <-q.PeerClosed():
			t.Errorf("%v: an orderly end of the peer's direction", late)
		default:
		}
		select {
		case <-q.life.txFailed.C():
		default:
			t.Errorf("%v: the sending direction is not told", late)
		}
	}
}

// TestInvalidateCrossing invalidates a window by a Send of the peer while this side is closing the
// window. The Send is an error only with StrictInvalidate. [I-55] [RDMAP-7.2-4] [SEC-6.4.5-1]
func TestInvalidateCrossing(t *testing.T) {
	for _, strict := range []bool{false, true} {
		_, q := asResponder(t, &Config{Interop: Interop{StrictInvalidate: strict}})
		mr, err := q.Register(make([]byte, 10), LocalOnly)
		if err != nil {
			t.Fatal(err)
		}
		w, err := q.Bind(mr, 0, 10, RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		w.closed.Store(true) // another goroutine is about to remove the window
		if got := q.rx.invalidateByPeer(w.STag()); got == strict {
			t.Errorf("strict %t: taken %t", strict, got)
		}
		w.closed.Store(false)
		if !q.rx.invalidateByPeer(w.STag()) || w.Valid() {
			t.Errorf("strict %t: an open window is not closed", strict)
		}
		if got := q.rx.invalidateByPeer(w.STag()); got == strict {
			t.Errorf("strict %t: a window of before is taken %t", strict, got)
		}
		if q.rx.invalidateByPeer(mr.STag()) {
			t.Error("a region is closed by the peer")
		}
	}
}

// TestAtomicFar checks that the word of an Atomic Operation must be in memory of this program. The
// last eight bytes of a region must be usable, both with RemoteAtomic and with
// RemoteRead|RemoteWrite. [I-67] [RDMAPX-8.2-2] [RDMAPX-8.2-3]
func TestAtomicFar(t *testing.T) {
	for _, access := range []Access{RemoteAtomic, RemoteRead | RemoteWrite} {
		p, q := asInitiator(t, extended())
		mem := make([]byte, 16)
		mr, err := q.Register(mem, access)
		if err != nil {
			t.Fatal(err)
		}
		p.ulpdu(seg(rdmap.AtomicRequestOp, 1, 1, 0, true, rdmap.NewFetchAdd(mr.STag(), 8, 1, 0).Append(nil)))
		if u := p.next(); rdmap.Opcode(u[1]&15) != rdmap.AtomicResponseOp {
			t.Errorf("rights %v: %x", access, u)
		}
	}
	p, q := asInitiator(t, extended())
	mr, err := q.PD().RegisterSpace(&testSpace{base: 0x10000, mem: make([]byte, 64)}, 0x10000,
		64, RemoteAtomic|RemoteRead|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	p.ulpdu(seg(rdmap.AtomicRequestOp, 1, 1, 0, true, rdmap.NewFetchAdd(mr.STag(), 0x10000, 1, 0).Append(nil)))
	wantTerminate(t, ended(t, q), false, 0, 1, 2)
	closed := make(chan error, 1)
	go func() { closed <- mr.Close() }()
	if err := testkit.Await(t, "the end of the region, which nothing uses", closed); err != nil {
		t.Error(err)
	}
}

// TestPlanRest checks that the rest of a long segment is read to its place, and that the read is
// marked as guarded if any of this memory may fault. [I-36]
func TestPlanRest(t *testing.T) {
	t.Run("pieces", func(t *testing.T) { // one guarded piece at any position marks the read as guarded
		for _, guarded := range [][2]bool{{false, false}, {true, false}, {false, true}} {
			_, q := asInitiator(t, nil)
			var sg []SGE
			for _, g := range guarded {
				mr, err := q.Register(make([]byte, 1000), LocalOnly, RegionOptions{Guarded: g})
				if err != nil {
					t.Fatal(err)
				}
				sg = append(sg, mr.SGE(0, 1000))
			}
			if err := q.PostRecv(RecvWR{SG: sg}); err != nil {
				t.Fatal(err)
			}
			q.link.fc.WithReceiver(func() {
				s := &q.rx.seg
				was := *s
				*s = segment{op: rdmap.Send, size: 1800}
				q.rx.box.recv = q.recvs.next(nil, 0, false)
				q.rx.Take(placer.Frame{Size: 1800, Trailer: 4}, make([]byte, 500))
				var p frameio.Plan
				if q.rx.Plan(&p); p.Guarded != (guarded[0] || guarded[1]) || len(p.Frame) != 2 ||
					len(p.Frame[0]) != 500 || len(p.Frame[1]) != 800 {
					t.Errorf("guarded %v: may fault %t, %d pieces", guarded, p.Guarded, len(p.Frame))
				}
				q.rx.Landed(&p, 1300, 0)
				q.rx.Drop()
				*s = was
			})
		}
	})
	// The pin of the piece before the missing one must be released.
	t.Run("a piece is gone", func(t *testing.T) {
		_, q := asInitiator(t, nil)
		var mrs [2]*MemoryRegion
		var sg []SGE
		for i := range mrs {
			mr, err := q.Register(make([]byte, 1000), LocalOnly)
			if err != nil {
				t.Fatal(err)
			}
			mrs[i] = mr
			sg = append(sg, mr.SGE(0, 1000))
		}
		if err := q.PostRecv(RecvWR{SG: sg}); err != nil {
			t.Fatal(err)
		}
		mrs[1].Close()
		q.link.fc.WithReceiver(func() {
			s := &q.rx.seg
			was := *s
			*s = segment{op: rdmap.Send, size: 1800}
			q.rx.box.recv = q.recvs.next(nil, 0, false)
			q.rx.Take(placer.Frame{Size: 1800, Trailer: 4}, make([]byte, 500))
			q.rx.LetGo()
			var p frameio.Plan
			if q.rx.Plan(&p); len(p.Frame) != 1 || len(p.Frame[0]) != 1300 ||
				&p.Frame[0][0] == &mrs[0].Bytes()[500] || !q.life.Load().ended() {
				t.Errorf("%d pieces of %d bytes", len(p.Frame), len(p.Frame[0]))
			}
			q.rx.Drop()
			*s = was
		})
		within(t, "Close of a region", func() { mrs[0].Close() })
	})
	for _, guarded := range []bool{false, true} {
		_, q := asInitiator(t, nil)
		mem := make([]byte, 4000)
		mr, err := q.Register(mem, RemoteWrite, RegionOptions{Guarded: guarded})
		if err != nil {
			t.Fatal(err)
		}
		q.link.fc.WithReceiver(func() {
			s := &q.rx.seg
			was := *s
			*s = segment{op: rdmap.Write, size: 3000, tagged: ddp.Tagged{STag: mr.STag(), TO: 500}}
			q.rx.Take(placer.Frame{Size: 3000, Trailer: 4}, make([]byte, 1000))
			var p frameio.Plan
			if q.rx.Plan(&p); p.Guarded != guarded || len(p.Frame) != 1 || len(p.Frame[0]) != 2000 ||
				&p.Frame[0][0] != &mem[1500] {
				t.Errorf("guarded %t: may fault %t, %d pieces", guarded, p.Guarded, len(p.Frame))
			}
			q.rx.Landed(&p, 2000, 0)
			q.rx.Drop()
			*s = was
		})
		if err := mr.Close(); err != nil { // Close waits for pins
			t.Error(err)
		}
		q.link.fc.WithReceiver(func() { // bytes without a place are read into the discard buffer
			s := &q.rx.seg
			was, before := *s, q.life.Load()
			*s = segment{op: rdmap.Write, size: 3000, tagged: ddp.Tagged{STag: mr.STag(), TO: 500}}
			q.rx.Take(placer.Frame{Size: 3000, Trailer: 4}, nil)
			var p frameio.Plan
			if q.rx.Plan(&p); len(p.Frame) != 1 || len(p.Frame[0]) != 3000 || before.ended() || !q.life.Load().ended() {
				t.Errorf("guarded %t: %d pieces", guarded, len(p.Frame))
			}
			q.rx.Drop()
			*s = was
		})
	}
}

// TestFirstLimitLifted checks the timer for the first FPDU. The timer must not limit later FPDUs,
// nor an Initiator, nor a Responder whose Initiator's ULP sends first. [I-08] [I-14] [MPA-7.1.2-15]
func TestFirstLimitLifted(t *testing.T) {
	const limit = time.Second
	const usual = 10 * time.Second
	for _, c := range []struct {
		limit, want         time.Duration // configured limit, and limit in effect: 0 for none
		initiator           bool
		clientSpeaks, comes bool
	}{
		{limit: limit, comes: true}, {limit: limit, want: limit}, {want: usual}, {limit: -limit},
		{limit: limit, initiator: true}, {initiator: true},
		{limit: limit, clientSpeaks: true}, {clientSpeaks: true},
	} {
		comes := c.comes
		inBubble(t, func(t *testing.T) {
			cfg := &Config{Responder: ResponderConfig{FirstFPDUTimeout: c.limit}}
			var p *peer
			var q *QueuePair
			if c.initiator {
				p, q = asResponder(t, cfg)
			} else {
				p, q = asSilentInitiator(t, cfg,
					mpa.Enhanced{PeerToPeer: !c.clientSpeaks, RTR: mpa.RTRWrite, IRD: 16, ORD: 16}, false)
			}
			begun := time.Now()
			if c.want > 0 {
				if err := ended(t, q); !errors.Is(err, ErrTimeout) || time.Since(begun) != c.want {
					t.Errorf("limit %v: %v after %v", c.limit, err, time.Since(begun))
				}
				return
			}
			if comes {
				p.ulpdu(tag(rdmap.Write, 1, 0, true, nil))
			}
			synctest.Wait()
			q.life.mu.Lock()
			if comes && (len(q.life.timers) > 0 || q.life.limit != nil) {
				t.Error("a timer is left that has nothing to tell")
			}
			q.life.mu.Unlock()
			time.Sleep(10 * usual)
			select {
			case <-q.Ended():
				t.Errorf("%+v: ended after %v: %v", c, time.Since(begun), q.Err())
			default:
			}
		})
	}
}
