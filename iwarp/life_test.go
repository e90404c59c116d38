package iwarp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"viaduct/internal/regmem"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// TestClose checks that Close sends the posted requests, waits for the Reads, and ends with FIN
// instead of a reset. After Close, every call must return an error. [DDP-6.2.1-1] [DDP-6.2.1-2]
// [DDP-6.2.1-5] [DDP-6.2.1-6] [MPA-7.2-1] [RDMAP-6.2-1] [RDMAP-7-3] [DDP-3-10] [DDP-3-11]
// [DDP-6.2-2] [I-33]
func TestClose(t *testing.T) {
	// A long limit, because 9 MiB must arrive before Close returns.
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true, FPDUSize: 64766}, CloseTimeout: patience})
	big := pattern(8<<20, 1)
	mr, _ := q.Register(make([]byte, 1<<20), RemoteRead)
	q.PostRecv(RecvWR{ID: 9})
	// A Read Request that arrived before Close must be answered.
	p.ulpdu(readReq(1, rdmap.ReadRequest{Size: 1 << 20, SourceSTag: mr.STag()}))
	for deadline := time.Now().Add(patience); q.Stats().ReceivedFPDUs == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	q.Post(SendWR{ID: 1, SG: []SGE{Buf(big)}})
	q.Post(readInto(2, make([]byte, 4)))
	closed := make(chan error, 1)
	go func() { closed <- q.Close() }()
	sizes := map[rdmap.Opcode]int{}
	for range 3 {
		op, head, body := p.message(64766)
		sizes[op] += len(body)
		if op == rdmap.ReadRequestOp {
			p.respond(append(head, body...), []byte("last"))
		}
	}
	if sizes[rdmap.Send] != len(big) || sizes[rdmap.ReadResponse] != 1<<20 {
		t.Errorf("%v", sizes)
	}
	if u, err := p.tryNext(); err != io.EOF {
		t.Errorf("%x, %v", u, err)
	}
	// Receiving continues until the peer closes. [DDP-6.2.1-7]
	p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil))
	p.c.Close()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for i := uint64(1); i <= 2; i++ {
		if c := wantOK(t, q.SendCQ()); c.ID != i {
			t.Errorf("%+v", c)
		}
	}
	if c := wantOK(t, q.RecvCQ()); c.ID != 9 {
		t.Errorf("%+v", c)
	}
	if !q.life.Load().ended() || !errors.Is(q.Err(), ErrClosed) && q.Err() != io.EOF {
		t.Error(q.life.Load(), q.Err())
	}
	if err := q.Post(SendWR{}); !errors.Is(err, ErrClosed) || !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := q.PostRecv(RecvWR{}); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := q.CloseWrite(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := q.Bind(mr, 0, 1, RemoteRead); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	q.Close() // a second call has no effect
	q.Abort()
	if n := len(q.mem.dev.Streams()); n != 0 {
		t.Errorf("%d streams left", n)
	}
}

// TestHalfClose checks that each direction can be closed without the other. [DDP-6.2.1-4]
// [DDP-6.2.1-7] [MPA-3-12] [MPA-7.2-2] [DDP-3-10] [I-32]
func TestHalfClose(t *testing.T) {
	a, b := connect(t, nil, nil)
	sink := make([]byte, 10)
	b.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(sink)}})
	b.PostRecv(RecvWR{ID: 2})
	a.PostRecv(RecvWR{ID: 3})
	a.Post(SendWR{SG: []SGE{Buf([]byte("bye"))}})
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Error(err)
	}
	if err := a.Post(SendWR{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if c := wantOK(t, b.RecvCQ()); c.ID != 1 || string(sink[:c.Len]) != "bye" {
		t.Errorf("%+v", c)
	}
	<-b.PeerClosed()
	if c, err := b.RecvCQ().Wait(ctxt(t)); err != nil || c.ID != 2 || c.Status != StatusFlushed {
		t.Errorf("%+v, %v", c, err)
	}
	if s := a.life.Load(); b.life.Load() != lifePeerClosed || b.Err() != nil || !s.closing() && !s.finished() {
		t.Error(b.life.Load(), b.Err(), s)
	}
	if err := b.PostRecv(RecvWR{}); !errors.Is(err, ErrPeerClosed) {
		t.Error(err)
	}
	if err := b.Post(readInto(1, sink)); !errors.Is(err, ErrPeerClosed) {
		t.Error(err)
	}
	// The direction from b to a is still open.
	if err := b.Post(SendWR{ID: 4, SG: []SGE{Buf([]byte("after"))}}); err != nil {
		t.Fatal(err)
	}
	wantOK(t, b.SendCQ())
	a.PostRecv(RecvWR{ID: 5, SG: []SGE{Buf(sink)}})
	// Receive 3 has no memory, so the message is too long. Only the order counts here.
	if c, err := a.RecvCQ().Wait(ctxt(t)); err != nil || c.ID != 3 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestClosePolled checks that an end notices the peer's close without polling, after closing our
// direction. [DDP-6.2.1-1] [DDP-6.2.1-7] [I-33]
func TestClosePolled(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, Polled: true})
	q.CloseWrite()
	if _, err := p.tryNext(); err != io.EOF {
		t.Errorf("our direction ended by %v", err)
	}
	p.c.(*net.TCPConn).CloseWrite()
	if err := ended(t, q); err != io.EOF {
		t.Errorf("ended by %v", err)
	}
}

// TestHalvesEnd checks that a stream ends when both directions have ended in order, whichever ends
// first, without a Close. [DDP-6.2.1-4] [DDP-6.2.1-5] [I-32]
func TestHalvesEnd(t *testing.T) {
	for _, oursFirst := range []bool{false, true} {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		if oursFirst {
			q.CloseWrite()
			if _, err := p.tryNext(); err != io.EOF {
				t.Errorf("our direction ended by %v", err)
			}
		}
		p.c.(*net.TCPConn).CloseWrite()
		<-q.PeerClosed()
		if !oursFirst {
			q.CloseWrite()
		}
		if err := ended(t, q); err != io.EOF {
			t.Errorf("ours first %t: ended by %v", oursFirst, err)
		}
	}
}

// TestFlushTogether flushes receives in two goroutines at once, as the end of the stream and a
// PostRecv may do. The receives must complete in the order of posting.
func TestFlushTogether(t *testing.T) {
	a, b := connect(t, nil, &Config{RecvDepth: 1024})
	defer closeBoth(a, b)
	for range 20 {
		for id := range uint64(1024) {
			if err := b.PostRecv(RecvWR{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		var both sync.WaitGroup
		for range 2 {
			both.Go(b.recvs.flush)
		}
		both.Wait()
		for id := range uint64(1024) {
			if c, ok := b.RecvCQ().Poll(); !ok || c.ID != id || c.Status != StatusFlushed {
				t.Fatalf("in place of receive %d: %+v, %t", id, c, ok)
			}
		}
	}
}

// TestHalfCloseReset resets the connection after the peer has closed its direction. A later send
// must end the stream with the error of a lost connection. [DDP-6.2.2-1] [DDP-3-3]
func TestHalfCloseReset(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	p.c.(*net.TCPConn).CloseWrite()
	<-q.PeerClosed()
	p.c.(*net.TCPConn).SetLinger(0)
	p.c.Close()
	for q.Post(SendWR{SG: []SGE{Buf(make([]byte, 100000))}}) == nil {
		if c, err := q.SendCQ().Wait(ctxt(t)); err != nil || c.Status != StatusOK {
			break
		}
	}
	wantTerminate(t, ended(t, q), false, 2, 0, 1)
}

// TestLost loses the connection in several ways. A FIN inside an FPDU or a message, or during a
// Read, is a loss too. If the peer's other direction is open, the loss must be reported to the
// peer. [MPA-8-1] [MPA-8-2] [DDP-6.2.2-1] [DDP-6.2.2-2] [DDP-7-1] [DDP-3-3] [RDMAP-6.2-2]
// [RDMAP-7.1-1] [DDP-6.2.1-3] [I-32] [I-34]
func TestLost(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(p *peer, q *QueuePair)
		told bool
	}{
		{"reset", func(p *peer, q *QueuePair) { p.c.(*net.TCPConn).SetLinger(0); p.c.Close() }, false},
		{"FIN inside an FPDU", func(p *peer, q *QueuePair) {
			b := p.enc.Append(nil, seg(rdmap.Send, 0, 1, 0, true, nil))
			p.raw(b[:len(b)-1])
			p.c.(*net.TCPConn).CloseWrite()
		}, true},
		{"FIN inside a message", func(p *peer, q *QueuePair) {
			p.ulpdu(seg(rdmap.Send, 0, 1, 0, false, []byte("half")))
			p.c.(*net.TCPConn).CloseWrite()
		}, true},
		{"FIN instead of a Read Response", func(p *peer, q *QueuePair) {
			q.Post(readInto(7, make([]byte, 4)))
			p.next()
			p.c.(*net.TCPConn).CloseWrite()
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, RecvDepth: 4})
			for i := range 3 {
				q.PostRecv(RecvWR{ID: uint64(i), SG: []SGE{Buf(make([]byte, 8))}})
			}
			c.do(p, q)
			if c.told {
				p.terminate([]byte{0x20, 1, 0, 0})
			}
			e := wantTerminate(t, ended(t, q), false, 2, 0, 1)
			if !c.told && (!q.life.txFailed.has() || e.Raw != nil) {
				t.Errorf("the sending direction is not told, or sends %x", e.Raw)
			}
			<-q.life.gone.C()
			for i := range 3 { // completions have the order of posting
				if c, ok := q.RecvCQ().Poll(); !ok || c.ID != uint64(i) || c.Status != StatusFlushed {
					t.Errorf("%+v, %t", c, ok)
				}
			}
			if c, ok := q.SendCQ().Poll(); ok && (c.ID != 7 || c.Status != StatusFlushed) {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestTerminateReceived sends every form of Terminate to a stream in every state. The stream must
// understand the Terminate without a posted receive, stop sending, flush its requests, and not
// answer. [RDMAP-5.4-3] [RDMAP-5.4-4] [RDMAP-5.4-5] [RDMAP-5.4-7] [RDMAP-5.4-9] [RDMAP-3.2-3]
// [RDMAP-3.2-5] [RDMAP-6.2.1-2] [RDMAP-6.2.1-3] [MPA-8-10] [I-37] [I-40] [I-75]
func TestTerminateReceived(t *testing.T) {
	for _, c := range []struct {
		name string
		body string
		hint bool
		l    [3]uint8
	}{
		{"plain", "\x20\x02\x00\x00", false, [3]uint8{2, 0, 2}},
		{"with DDP header", "\x11\x01\xc0\x00\x00\x40\xc1\x40" + "\x00\x00\x00\x01" + "\x00\x00\x00\x00\x00\x00\x00\x02", false, [3]uint8{1, 1, 1}},
		{"R without header", "\x01\x09\x20\x00", false, [3]uint8{0, 1, 9}},
		{"reserved bits", "\x02\x06\x1f\xff", true, [3]uint8{0, 2, 6}},
		{"swapped, as Linux does", "\x02\x02\x00\x00", true, [3]uint8{0, 2, 2}},
		{"unknown", "\xff\xff\x00\x00", false, [3]uint8{15, 15, 255}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for state, prepare := range map[string]func(p *peer, q *QueuePair){
				"idle":           func(*peer, *QueuePair) {},
				"inside a Send":  func(p *peer, q *QueuePair) { p.ulpdu(seg(rdmap.Send, 0, 1, 0, false, nil)) },
				"Read waiting":   func(p *peer, q *QueuePair) { q.Post(readInto(3, make([]byte, 4))); p.next() },
				"socket full":    func(p *peer, q *QueuePair) { q.Post(SendWR{ID: 3, SG: []SGE{Buf(make([]byte, 32<<20))}}) },
				"serving a Read": func(p *peer, q *QueuePair) { p.ulpdu(readReq(1, rdmap.ReadRequest{})) },
				"closing":        func(p *peer, q *QueuePair) { q.CloseWrite() },
			} {
				t.Run(state, func(t *testing.T) {
					p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
					q.PostRecv(RecvWR{ID: 1, SG: []SGE{Buf(make([]byte, 4))}})
					prepare(p, q)
					p.ulpdu(seg(rdmap.TerminateOp, 2, 1, 0, true, []byte(c.body)),
						// A segment after the Terminate must have no effect.
						seg(rdmap.Send, 0, 1, 0, true, nil))
					e := wantTerminate(t, ended(t, q), true, c.l[0], c.l[1], c.l[2])
					if string(e.Raw) != c.body || e.Error() == "" {
						t.Errorf("%+v", e)
					}
					if c.hint && c.name != "reserved bits" && e.Hint == "" {
						t.Error("no hint")
					}
					p.c.Close()
					<-q.life.gone.C()
					if c, ok := q.RecvCQ().Poll(); !ok || c.Status != StatusFlushed {
						t.Errorf("%+v, %t", c, ok)
					}
					if c, ok := q.SendCQ().Poll(); ok && c.Status != StatusFlushed {
						t.Errorf("%+v", c)
					}
				})
			}
		})
	}
	t.Run("not answered", func(t *testing.T) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		p.ulpdu(seg(rdmap.TerminateOp, 2, 1, 0, true, []byte("\x20\x02\x00\x00")))
		p.fin()
		ended(t, q)
	})
	t.Run("names the Read", func(t *testing.T) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		for i := range 3 {
			q.Post(readInto(uint64(i), make([]byte, 4)))
		}
		p.next()
		u := p.next()
		tm := rdmap.TerminateRDMAP(rdmap.AccessRights, u)
		p.ulpdu(seg(rdmap.TerminateOp, 2, 1, 0, true, tm.Append(nil)))
		e := wantTerminate(t, ended(t, q), true, 0, 1, 2)
		if !bytes.Equal(e.RDMAP, u[18:]) || !bytes.Equal(e.DDP, u[:18]) || e.SegLen != len(u) {
			t.Errorf("%+v", e)
		}
		p.c.Close()
		<-q.life.gone.C()
		for i, want := range []Status{StatusFlushed, StatusRemote, StatusFlushed} {
			if c, ok := q.SendCQ().Poll(); !ok || c.ID != uint64(i) || c.Status != want {
				t.Errorf("%+v, %t", c, ok)
			}
		}
	})
}

// TestTerminateArrives ends a stream with unread input and a full socket. The Terminate must still
// reach the peer, after the FPDU being written and before queued messages. [RDMAP-6.2.1-1]
// [RDMAP-6.2.1-4] [RDMAP-7.1-3] [RDMAP-7.1-5] [RDMAP-5.4-7] [RDMAP-5.4-8] [DDP-3-9] [DDP-6.2-1]
// [DDP-6.2.2-3] [DDP-6.2.2-4] [DDP-7.1-17] [MPA-8-9] [I-35] [I-36] [I-41]
func TestTerminateArrives(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	for i := range 20 {
		q.Post(SendWR{ID: uint64(i), Op: OpWrite, SG: []SGE{Buf(make([]byte, 4<<20))}})
	}
	bad := tag(rdmap.Write, 1, 0, true, []byte("x"))
	var b []byte
	b = p.enc.Append(b, bad)
	b = p.enc.Append(b, seg(rdmap.Send, 99, 1, 0, true, nil)) // a second error, which is not reported
	for range 2000 {
		b = p.enc.Append(b, tag(rdmap.Write, 1, 0, true, make([]byte, 500)))
	}
	done := make(chan struct{})
	go func() { // the peer continues to send until the connection is closed
		defer close(done)
		for {
			if _, err := p.c.Write(b); err != nil {
				return
			}
		}
	}()
	defer func() { <-done }()
	wantTerminate(t, ended(t, q), false, 1, 1, 0)
	n := 0
	for {
		u, err := p.tryNext()
		if err != nil {
			t.Fatalf("no Terminate, but %v", err)
		}
		if !ddp.IsTagged(u[0]) {
			if want := append([]byte{0x11, 0, 0xc0, 0, 0, 15}, bad[:14]...); !bytes.Equal(u[18:], want) {
				t.Errorf("%x", u)
			}
			break
		}
		n += len(u)
	}
	if n > 60<<20 {
		t.Errorf("%d bytes went before the Terminate", n)
	}
	p.fin()
	<-q.life.gone.C()
	flushed := 0
	for i := range 20 {
		c, ok := q.SendCQ().Poll()
		if !ok || c.ID != uint64(i) {
			t.Fatalf("%+v, %t", c, ok)
		}
		if c.Status == StatusFlushed {
			flushed++
		}
	}
	if flushed == 0 {
		t.Error("nothing was flushed")
	}
}

// TestStuckPeer checks that Close ends in time although the peer reads nothing. [I-36] [I-33]
func TestStuckPeer(t *testing.T) {
	const bound = 100 * time.Millisecond
	stuck := func(t *testing.T, size int) time.Duration {
		_, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, CloseTimeout: bound})
		q.Post(SendWR{ID: 1, SG: []SGE{Buf(make([]byte, size))}})
		start := time.Now()
		within(t, "Close", func() { q.Close() })
		took := time.Since(start)
		if c, ok := q.SendCQ().Poll(); !ok || c.Status != StatusFlushed {
			t.Errorf("%+v, %t", c, ok)
		}
		return took
	}
	runInBubble(t, "in time", func(t *testing.T) {
		// A failed write of a connection without a descriptor takes a moment longer.
		if d := stuck(t, 1<<20); d < bound || d > bound+time.Second {
			t.Errorf("Close took %v, told to wait for %v", d, bound)
		}
	})
	t.Run("socket", func(t *testing.T) { stuck(t, 32<<20) })
}

// TestPeerStaysOpen checks that Close waits exactly CloseTimeout for a peer that does not close.
// The peer must get all sent bytes, and then FIN. [I-33]
func TestPeerStaysOpen(t *testing.T) {
	const bound = 200 * time.Millisecond
	open := func(t *testing.T) time.Duration {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, CloseTimeout: bound})
		q.Post(SendWR{ID: 1, SG: []SGE{Buf([]byte("last words"))}})
		q.PostRecv(RecvWR{ID: 2})
		start := time.Now()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		took := time.Since(start)
		wantOK(t, q.SendCQ())
		if c, ok := q.RecvCQ().Poll(); !ok || c.ID != 2 || c.Status != StatusFlushed {
			t.Errorf("%+v, %t", c, ok)
		}
		if _, _, body := p.message(64766); string(body) != "last words" {
			t.Errorf("%q", body)
		}
		p.fin()
		return took
	}
	runInBubble(t, "in time", func(t *testing.T) {
		if d := open(t); d != bound {
			t.Errorf("Close took %v, told to wait for %v", d, bound)
		}
	})
	t.Run("socket", func(t *testing.T) {
		if d := open(t); d < bound {
			t.Errorf("Close took %v, told to wait for %v", d, bound)
		}
	})
}

// TestStoppedWhileClosing checks that a Close that finds the end of our direction together with the
// end of its time, as after a stop of the process, does not reset the connection. [I-33]
func TestStoppedWhileClosing(t *testing.T) {
	for range 100 {
		var l life
		l.drained.happen()
		if how, err := l.awaitEnd(1); how != endLate || err != ErrClosed {
			t.Fatalf("ends by %d with %v, want %d", how, err, endLate)
		}
	}
}

// TestAbort checks that Abort resets the connection, and flushes requests in the order of posting.
// [DDP-6.2.2-2]
func TestAbort(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	for i := range 5 {
		q.PostRecv(RecvWR{ID: uint64(i)})
		q.Post(readInto(uint64(i), make([]byte, 4)))
	}
	q.Abort()
	q.Close()
	for i := range 5 {
		if c, ok := q.RecvCQ().Poll(); !ok || c.ID != uint64(i) || c.Status != StatusFlushed {
			t.Errorf("%+v, %t", c, ok)
		}
		if c, ok := q.SendCQ().Poll(); !ok || c.ID != uint64(i) || c.Status != StatusFlushed || c.Err() == nil {
			t.Errorf("%+v, %t", c, ok)
		}
	}
	if !errors.Is(q.Err(), net.ErrClosed) {
		t.Error(q.Err())
	}
	for {
		if _, err := p.tryNext(); err != nil {
			if err == io.EOF {
				t.Error("FIN instead of a reset")
			}
			break
		}
	}
}

// TestReadAfterEnd sends a Read Request after our direction has ended. No answer can be sent, so
// the request must end the stream at once with an error naming the reason. A message without need
// of an answer must be received. [I-33]
func TestReadAfterEnd(t *testing.T) {
	p, q := asResponder(t, nil)
	mr, err := q.Register(make([]byte, 10), RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	q.PostRecv(RecvWR{ID: 1})
	if err := q.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if u, err := p.tryNext(); err != io.EOF {
		t.Fatalf("%x, %v", u, err)
	}
	p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil))
	wantOK(t, q.RecvCQ())
	p.ulpdu(readReq(1, rdmap.ReadRequest{Size: 10, SourceSTag: mr.STag()}))
	if err := ended(t, q); !errors.Is(err, errNoAnswer) {
		t.Error(err)
	}
	if n := q.Stats().ServedReads; n != 0 {
		t.Errorf("%d Reads were answered", n)
	}
}

// TestIdleTimeout checks that a stream ends after the configured time without traffic, and not
// before. [SEC-6.4.2-1] [I-71]
func TestIdleTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const idle = time.Minute
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}, IdleTimeout: idle})
		for range 8 { // eight sleeps are twice the idle timeout
			p.ulpdu(tag(rdmap.Write, 0, 0, true, nil))
			time.Sleep(idle / 4)
		}
		last := q.Stats().LastActivity
		if after := time.Since(last); after != idle/4 {
			t.Errorf("the last activity was %v ago", after)
		}
		if err := ended(t, q); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		if after := time.Since(last); after != idle {
			t.Errorf("an idle stream was ended after %v of %v", after, idle)
		}
	})
	// The timer must work over a socket too. The peer expects no FPDU, because the stream may end
	// before it has sent one.
	_, q := asSilentInitiator(t, &Config{IdleTimeout: 50 * time.Millisecond},
		mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite, IRD: 1, ORD: 1}, false)
	if err := ended(t, q); !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
	if q.Stats().LastActivity.IsZero() {
		t.Error("no time of activity")
	}
}

// TestCloseBehindInvalidation checks that our direction ends after the last request, even if the
// last request is an invalidation and sends nothing.
func TestCloseBehindInvalidation(t *testing.T) {
	p, q := asResponder(t, &Config{CloseTimeout: time.Hour})
	mr, _ := q.Register(make([]byte, 8), RemoteWrite)
	w, err := q.Bind(mr, 0, 8, RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	// The invalidation waits until this pin is released.
	pin, out := q.mem.access(w.STag(), w.TO(), 8, regmem.RemoteWrite)
	if out != regmem.OK {
		t.Fatal(out)
	}
	q.Post(SendWR{ID: 1, Op: OpLocalInvalidate, Invalidate: w.STag()})
	if err := q.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if time.Sleep(10 * time.Millisecond); q.life.drained.has() {
		t.Error("our direction has ended before the invalidation")
	}
	pin.Release()
	testkit.Await(t, "the end of our direction", q.life.drained.C())
	if c, ok := q.SendCQ().Poll(); !ok || c.ID != 1 || c.Status != StatusOK {
		t.Errorf("our direction has ended before the completion: %t, %+v", ok, c)
	}
	p.c.Close()
	q.Close()
}

// TestPolledActivity receives messages by polling. The time of the last activity must be updated in
// the next poll, in the poll before a wait, and by a call of Stats.
func TestPolledActivity(t *testing.T) {
	p, q := asResponder(t, &Config{Polled: true})
	if !q.link.fc.InPlace() {
		t.Skip("SKIPPED: there is no fast path on this system")
	}
	for i, note := range []func(){
		func() { q.RecvCQ().Poll() },
		func() { q.Stats() },
		func() { q.RecvCQ().Arm(false) },
	} {
		p.ulpdu(tag(rdmap.Write, 0, 0, true, nil))
		for end := time.Now().Add(patience); int(q.active.received.Load()) == i; q.RecvCQ().Poll() {
			if time.Now().After(end) {
				t.Fatal("nothing comes")
			}
		}
		if !q.active.unnoted() {
			t.Errorf("%d: a poll has read the clock", i)
		}
		before := time.Now()
		if note(); q.active.unnoted() || q.active.last().Before(before) {
			t.Errorf("%d: noted as of %v before", i, before.Sub(q.active.last()))
		}
		last := q.active.last()
		if q.RecvCQ().Poll(); !q.active.last().Equal(last) {
			t.Errorf("%d: a poll that found nothing was an activity", i)
		}
	}
}

// TestLocalFaults closes local memory after posting. The request must fail with StatusLocalAccess,
// and then the stream must end with a Terminate without headers. [RDMAP-7.1-2] [RDMAPX-8.1-1]
// [RDMAP-4.8-9] [RDMAP-5.4-7] [I-34]
func TestLocalFaults(t *testing.T) {
	check := func(t *testing.T, p *peer, q *QueuePair, cq *CompletionQueue, id uint64) {
		t.Helper()
		p.terminate([]byte{0, 0, 0, 0})
		wantTerminate(t, ended(t, q), false, 0, 0, 0)
		if !errors.Is(q.Err(), ErrLocalAccess) {
			t.Error(q.Err())
		}
		<-q.life.gone.C()
		c, ok := cq.Poll()
		if !ok || c.ID != id || c.Status != StatusLocalAccess || c.Len != 0 || !errors.Is(c.Err(), ErrLocalAccess) {
			t.Errorf("%+v, %t", c, ok)
		}
		if c, ok := cq.Poll(); !ok || c.Status != StatusFlushed {
			t.Errorf("%+v, %t", c, ok)
		}
	}
	t.Run("Send", func(t *testing.T) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		mr, _ := q.Register(make([]byte, 10), LocalOnly)
		q.Post(SendWR{ID: 1, More: true, SG: []SGE{mr.SGE(0, 10)}})
		q.Post(SendWR{ID: 2, More: true})
		mr.Close()
		q.Flush()
		check(t, p, q, q.SendCQ(), 1)
	})
	t.Run("Read", func(t *testing.T) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		mr, _ := q.Register(make([]byte, 10), LocalOnly)
		q.Post(SendWR{ID: 1, Op: OpRead, SG: []SGE{mr.SGE(0, 10)}})
		q.Post(SendWR{ID: 2, Op: OpRead})
		u := p.next()
		p.next()
		mr.Close()
		p.respond(u, make([]byte, 10))
		check(t, p, q, q.SendCQ(), 1)
	})
	t.Run("receive", func(t *testing.T) {
		p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
		mr, _ := q.Register(make([]byte, 10), LocalOnly)
		q.PostRecv(RecvWR{ID: 1, SG: []SGE{mr.SGE(0, 10)}})
		q.PostRecv(RecvWR{ID: 2})
		mr.Close()
		p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, []byte("x")))
		check(t, p, q, q.RecvCQ(), 1)
	})
}

// TestSourceRevoked closes the source of a Read in the middle of a long response, or revokes the
// right to read it. The Terminate must contain the request advanced by the sent bytes.
// [RDMAP-4.8-12] [SEC-6.2.2-2] [SEC-6.3.1-1] [SEC-6.3.3-1] [I-43]
func TestSourceRevoked(t *testing.T) {
	const size = 64 << 20
	mem := make([]byte, size)
	for _, c := range []struct {
		name   string
		fpdu   int
		revoke func(mr *MemoryRegion) error
		code   uint8
	}{
		{"closed", 1442, (*MemoryRegion).Close, 0},
		{"closed, long segments", 32000, (*MemoryRegion).Close, 0},
		{"rights", 1442, withoutRead, 2},
		{"rights, long segments", 32000, withoutRead, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asInitiator(t, &Config{Interop: Interop{FPDUSize: c.fpdu}})
			mr, _ := q.Register(mem, RemoteRead)
			req := readReq(1, rdmap.ReadRequest{SinkSTag: 5, SinkTO: 1000, Size: size, SourceSTag: mr.STag()})
			p.ulpdu(req)
			sent := 0
			for sent < 1<<20 {
				sent += len(p.next()) - 14
			}
			if err := c.revoke(mr); err != nil {
				t.Fatal(err)
			}
			var u []byte
			for {
				if u = p.next(); !ddp.IsTagged(u[0]) {
					break
				}
				sent += len(u) - 14
			}
			want := rdmap.ReadRequest{SinkSTag: 5, SinkTO: 1000, Size: size, SourceSTag: mr.STag()}.Advance(uint32(sent))
			body := append([]byte{0x01, c.code, 0xe0, 0, 0, 46}, req[:18]...)
			if body = want.Append(body); !bytes.Equal(u[18:], body) {
				t.Errorf("Terminate\n got %x\nwant %x", u[18:], body)
			}
			wantTerminate(t, ended(t, q), false, 0, 1, c.code)
		})
	}
}

// withoutRead removes the right to read a region, but not the rights to write and to use Atomics.
func withoutRead(mr *MemoryRegion) error {
	mr.SetAccess(RemoteWrite | RemoteAtomic)
	return nil
}

// TestBothSidesLearn causes faults between two real streams. Both sides must get the same
// *TerminateError, except for Remote. [RDMAP-5.1-3] [RDMAP-3.2-3] [RDMAP-3.2-5] [RDMAP-7-1]
// [RDMAP-7.1-1] [MPA-8-2]
func TestBothSidesLearn(t *testing.T) {
	for _, c := range []struct {
		wr        SendWR
		l, ty, co uint8
	}{
		{SendWR{SG: []SGE{Buf([]byte("long"))}}, 1, 2, 5},
		{SendWR{Op: OpWrite, Remote: RemoteAddr{STag: 1}, SG: []SGE{Buf([]byte("x"))}}, 1, 1, 0},
		{SendWR{Op: OpRead, Remote: RemoteAddr{STag: 1}, SG: []SGE{Buf([]byte("x"))}}, 0, 1, 0},
		{SendWR{Op: OpSendInvalidate, Invalidate: 1}, 0, 1, 9},
	} {
		t.Run(fmt.Sprintf("%d.%d.%02x", c.l, c.ty, c.co), func(t *testing.T) {
			a, b := connect(t, nil, nil)
			b.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 2))}})
			if err := a.Post(c.wr); err != nil {
				t.Fatal(err)
			}
			eb := wantTerminate(t, ended(t, b), false, c.l, c.ty, c.co)
			ea := wantTerminate(t, ended(t, a), true, c.l, c.ty, c.co)
			if !bytes.Equal(ea.Raw, eb.Raw) || ea.SegLen != eb.SegLen ||
				errors.Is(ea, &TerminateError{Layer: c.l, Type: c.ty, Code: c.co}) ||
				!errors.Is(ea, &TerminateError{Remote: true, Layer: c.l, Type: c.ty, Code: c.co}) {
				t.Errorf("%v, %v", ea, eb)
			}
		})
	}
}
