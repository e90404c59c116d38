package sdp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/sdpcore"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// TestJudge checks the reasons for refusing a Hello, at their limits.
func TestJudge(t *testing.T) {
	for _, v := range []struct {
		row    string
		change func(*sdpwire.Hello)
		want   Reason
	}{
		{"SDP-8.1.1-12", func(h *sdpwire.Hello) {}, ReasonUnknown},
		{"SDP-6.2.1.1-2", func(h *sdpwire.Hello) { h.MajV = 0 }, ReasonVersion},
		{"SDP-6.2.1.1-2", func(h *sdpwire.Hello) { h.MajV = 2 }, ReasonVersion},
		{"SDP-6.2.1.2-2", func(h *sdpwire.Hello) { h.MinV = 15 }, ReasonUnknown}, // [SDP-8.1.1-14] [SDP-8.1.1-15]
		{"SDP-6.2.1.2-2", func(h *sdpwire.Hello) { h.MinV = 0 }, ReasonUnknown},
		{"SDP-6.2.1.3-3", func(h *sdpwire.Hello) { h.MaxAdverts = 0 }, ReasonAdverts},
		{"SDP-6.2.1.3-3", func(h *sdpwire.Hello) { h.MaxAdverts = 1 }, ReasonUnknown},
		{"SDP-8.1.1-12", func(h *sdpwire.Hello) { h.LocIRD = 0 }, ReasonDepth},
		{"SDP-8.1.1-12", func(h *sdpwire.Hello) { h.LocORD = 0 }, ReasonDepth},
		{"SDP-8.1.1-12", func(h *sdpwire.Hello) { h.LocIRD, h.LocORD = 1, 1 }, ReasonUnknown},
		{"SDP-10.3-1", func(h *sdpwire.Hello) { h.Bufs = 2 }, ReasonBuffers}, // [D-07]
		{"SDP-10.3-1", func(h *sdpwire.Hello) { h.Bufs = 3 }, ReasonUnknown},
		{"SDP-10-5", func(h *sdpwire.Hello) { h.LocalRcvSz = 36 }, ReasonBuffers},
		{"SDP-10-5", func(h *sdpwire.Hello) { h.LocalRcvSz = 37 }, ReasonUnknown},
		{"D-07", func(h *sdpwire.Hello) { h.LocalRcvSz = 1 << 31 }, ReasonUnknown},
		{"D-07", func(h *sdpwire.Hello) { h.LocalRcvSz = 1<<31 + 1 }, ReasonBuffers},
	} {
		h := goodHello
		v.change(&h)
		if got := judge(h); got != v.want {
			t.Errorf("[%s] %+v: %v, want %v", v.row, h, got, v.want)
		}
	}
}

// TestRecvSizeFor: the peer's requested size is granted from 4 KiB to the largest size, if our own
// size is in the same range.
func TestRecvSizeFor(t *testing.T) { // [SDP-6.2.1.4-2] [SDP-6.2.1.4-3] [D-07] [D-14]
	for _, v := range []struct {
		own   int
		keep  bool
		wish  uint32
		wants int
	}{
		{8192, false, 4096, 4096}, {8192, false, 4095, 8192}, {8192, false, maxWish, maxWish}, {8192, false, maxWish + 1, 8192},
		{8192, true, 5000, 8192},
		{4096, false, 5000, 5000}, {4095, false, 5000, 4095},
		{maxWish, false, 5000, 5000}, {maxWish + 1, false, 5000, maxWish + 1},
		{8192, false, 0, 8192}, {8192, false, 1<<32 - 1, 8192},
	} {
		if got := recvSizeFor(&Options{RecvBufferSize: v.own, NoResize: v.keep}, v.wish); got != v.wants {
			t.Errorf("own %d, kept %t, wish %d: %d, want %d", v.own, v.keep, v.wish, got, v.wants)
		}
	}
}

// TestReadGreeting: a greeting is a Hello of either layout, alone or with a token.
func TestReadGreeting(t *testing.T) { // [SDP-6.2.1-1] [D-01] [D-07]
	for _, layout := range []sdpwire.Layout{sdpwire.Figure, sdpwire.IBTA} {
		h := goodHello.Append(nil, layout)
		token := []byte("0123456789abcdef")
		for _, v := range []struct {
			b  []byte
			ok bool
		}{
			{h, true}, {append(slices.Clone(h), token...), true},
			{append(slices.Clone(h), token[:15]...), false}, {append(append(slices.Clone(h), token...), 0), false},
			{append(slices.Clone(h), 0), false}, {h[:31], false}, {h[:16], false}, {nil, false}, {make([]byte, 32), false},
		} {
			g, ok := readGreeting(v.b)
			if ok != v.ok {
				t.Errorf("%v, %d bytes: %t", layout, len(v.b), ok)
			}
			if ok && (g.layout != layout || g.hello != goodHello || string(g.token) != string(v.b[32:])) {
				t.Errorf("%v, %d bytes: %+v", layout, len(v.b), g)
			}
		}
		bad := slices.Clone(h)
		binary.BigEndian.PutUint32(bad[4:], 33) // Len
		if _, ok := readGreeting(bad); ok {
			t.Error("a Hello of 33 bytes")
		}
		flagged := slices.Clone(h)
		flagged[2-layout] = 1 // Flags is byte 2 of the figure layout and byte 1 of the IBTA layout
		if g, ok := readGreeting(flagged); ok {
			t.Errorf("%v, with Flags: %+v", layout, g)
		}
	}
}

// TestReadRaw: a raw Hello is 32 bytes, in pieces of any size, and a truncated Hello is an error.
func TestReadRaw(t *testing.T) { // [SDP-8.1.1-10]
	inBubble(t, "pieces", func(t *testing.T) {
		want := goodHello.Append(nil, sdpwire.Figure)
		a, b := net.Pipe()
		go func() {
			for i := range want {
				a.Write(want[i : i+1])
			}
			a.Write([]byte("behind"))
		}()
		got, err := readRaw(t.Context(), b, time.Now().Add(time.Second))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%x, %v", got, err)
		}
		rest := make([]byte, 6)
		if _, err := io.ReadFull(b, rest); err != nil || string(rest) != "behind" {
			t.Errorf("%q, %v", rest, err)
		}
		a.Close()
		b.Close()
	})
	inBubble(t, "cut", func(t *testing.T) {
		a, b := net.Pipe()
		go func() {
			a.Write(make([]byte, 31))
			a.Close()
		}()
		if _, err := readRaw(t.Context(), b, time.Now().Add(time.Second)); err != io.EOF {
			t.Error(err)
		}
		b.Close()
	})
	inBubble(t, "late", func(t *testing.T) { // [D-17]
		a, b := net.Pipe()
		go a.Write(make([]byte, 31))
		begun := time.Now()
		if _, err := readRaw(t.Context(), b, begun.Add(time.Second)); !errors.Is(err, os.ErrDeadlineExceeded) ||
			time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		a.Close()
		b.Close()
	})
}

// closing is a connection that counts its Close calls, and records the write deadlines.
type closing struct {
	net.Conn
	closed  int
	writeBy []time.Time
	fails   error // error of writes
}

func (c *closing) Close() error { c.closed++; return c.Conn.Close() }
func (c *closing) SetWriteDeadline(t time.Time) error {
	c.writeBy = append(c.writeBy, t)
	return c.Conn.SetWriteDeadline(t)
}
func (c *closing) Write(b []byte) (int, error) {
	if c.fails != nil {
		return 0, c.fails
	}
	return c.Conn.Write(b)
}

// TestConnectFails ends a set-up at the Connecting Peer in several ways, and checks the errors. No
// part of the set-up may remain. [SDP-8.1.2-1] [SDP-8.1.2-2]
func TestConnectFails(t *testing.T) { // [SDP-8.1.1-3] [SDP-8.1.1-4] [SDP-9.1-2] [D-02] [D-16]
	opt, err := (&Options{}).complete()
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, "no queue", func(t *testing.T) {
		a, b := testkit.Pipe()
		defer b.Close()
		o := opt
		o.RecvBuffers = 1 << 21 // more than a completion queue holds
		nc := &closing{Conn: a}
		if _, _, err := connect(t.Context(), nc, o, sdpwire.Figure, false, nil); err == nil || nc.closed != 1 {
			t.Errorf("%v, closed %d times", err, nc.closed)
		}
	})
	inBubble(t, "raw Hello not written", func(t *testing.T) {
		a, b := testkit.Pipe()
		defer b.Close()
		broken := errors.New("broken")
		nc := &closing{Conn: a, fails: broken}
		begun := time.Now()
		if _, _, err := connect(t.Context(), nc, opt, sdpwire.Figure, true, nil); err != broken || nc.closed != 1 {
			t.Errorf("%v, closed %d times", err, nc.closed)
		}
		if len(nc.writeBy) != 1 || !nc.writeBy[0].Equal(begun.Add(opt.SetupTimeout)) {
			t.Errorf("written by %v, want %v", nc.writeBy, begun.Add(opt.SetupTimeout))
		}
	})
	inBubble(t, "raw Hello not taken", func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		begun := time.Now()
		if _, _, err := connect(t.Context(), a, opt, sdpwire.Figure, true, nil); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != opt.SetupTimeout {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
	inBubble(t, "raw Hello", func(t *testing.T) { // a token follows the Hello
		a, b := testkit.Pipe()
		nc := &closing{Conn: a}
		done := make(chan error, 1)
		go func() {
			_, _, err := connect(t.Context(), nc, opt, sdpwire.IBTA, true, []byte("token"))
			done <- err
		}()
		got := make([]byte, sdpwire.HelloLen+5+len(mpaKey))
		if _, err := io.ReadFull(b, got); err != nil {
			t.Fatal(err)
		}
		s := setup{opt: opt}
		want := append(append(s.hello(opt.RecvBufferSize).Append(nil, sdpwire.IBTA), "token"...), mpaKey...)
		if !slices.Equal(got, want) {
			t.Errorf("%x, want %x", got, want)
		}
		if n := len(nc.writeBy); n < 2 || !nc.writeBy[1].IsZero() {
			t.Errorf("what follows has to be written by %v", nc.writeBy)
		}
		b.Close()
		if err := <-done; err == nil || nc.closed == 0 {
			t.Errorf("%v, closed %d times", err, nc.closed)
		}
	})
	for _, private := range [][]byte{nil, {0}, {0, byte(ReasonBusy)}, {0, byte(ReasonBusy), 7}} {
		inBubble(t, "rejected", func(t *testing.T) {
			a, b := testkit.Pipe()
			go func() {
				req, err := iwarp.ReadRequest(context.Background(), b, nil, (&wirePeer{t: t}).config(nil))
				if err == nil {
					err = req.Reject(private)
				}
				if err != nil {
					t.Error(err)
				}
			}()
			nc := &closing{Conn: a}
			_, _, err := connect(t.Context(), nc, opt, sdpwire.Figure, false, nil)
			want := ReasonUnknown
			if len(private) >= 2 {
				want = ReasonBusy
			}
			var ref *RefusedError
			if !errors.As(err, &ref) || ref.Reason != want || nc.closed == 0 {
				t.Errorf("private data %x: %v, closed %d times", private, err, nc.closed)
			}
		})
	}
	inBubble(t, "no answer", func(t *testing.T) { // [D-17]
		a, b := testkit.Pipe()
		defer b.Close()
		nc := &closing{Conn: a}
		begun := time.Now()
		_, _, err := connect(t.Context(), nc, opt, sdpwire.Figure, false, nil)
		var ref *RefusedError
		if err == nil || errors.As(err, &ref) || time.Since(begun) != opt.SetupTimeout || nc.closed == 0 {
			t.Errorf("%v after %v, closed %d times", err, time.Since(begun), nc.closed)
		}
	})
}

// TestHelloAckFails sends HelloAcks with an error in each field, at the limits.
func TestHelloAckFails(t *testing.T) { // [SDP-8.1.1-3] [SDP-8.1.1-4] [SDP-8.1.2-1] [SDP-8.1.2-2]
	opt, err := (&Options{}).complete()
	if err != nil {
		t.Fatal(err)
	}
	// dialAs connects to a peer that answers the Hello with ack, and puts private into the private
	// data of the MPA reply. Then dialAs calls then for the peer.
	dialAs := func(t *testing.T, layout sdpwire.Layout, ird int, private, ack []byte, then func(*wirePeer)) (*setup,
		sdpcore.Params, error) {
		t.Helper()
		a, b := testkit.Pipe()
		w := &wirePeer{t: t}
		served := make(chan error, 1)
		go func() {
			cfg := w.config(private)
			cfg.IRD, cfg.MaxIRD = ird, ird
			qp, err := iwarp.Server(context.Background(), b, cfg)
			if err == nil && ack != nil {
				err = qp.Post(iwarp.SendWR{Op: iwarp.OpSendSE, SG: []iwarp.SGE{iwarp.Buf(ack)}, Unsignaled: true})
			}
			if err == nil && then != nil {
				then(w)
			}
			served <- err
		}()
		nc := &closing{Conn: a}
		begun := time.Now()
		s, p, err := connect(t.Context(), nc, opt, layout, false, nil)
		// The dial ends at once or at its time limit: the dialer does not wait for the peer to
		// close.
		if d := time.Since(begun); d != 0 && d != opt.SetupTimeout {
			t.Errorf("it took %v", d)
		}
		if serr := <-served; serr != nil {
			t.Error(serr)
		}
		defer w.close()
		if err == nil {
			if p.Role != sdpcore.Connecting || p.PeerBufs != int(goodAck.Bufs) && p.PeerBufs != 3 ||
				s.layout != layout || s.in.layout != layout {
				t.Errorf("%+v", p)
			}
			if !s.in.idle() { // all Private Buffers are free for messages
				t.Error("the HelloAck keeps its buffer")
			}
			s.discard()
		}
		synctest.Wait()
		if err != nil && nc.closed == 0 {
			t.Error("the TCP connection is left open")
		}
		return s, p, err
	}
	dial := func(t *testing.T, private, ack []byte, then func(*wirePeer)) (sdpcore.Params, error) {
		t.Helper()
		_, p, err := dialAs(t, sdpwire.Figure, 16, private, ack, then)
		return p, err
	}
	for _, v := range []struct {
		row    string
		change func(*sdpwire.HelloAck)
		ok     bool
	}{
		{"SDP-8.1.1-25", func(a *sdpwire.HelloAck) {}, true},
		{"SDP-6.2.2.1-2", func(a *sdpwire.HelloAck) { a.MajV = 2 }, false},
		{"SDP-6.2.2.1-2", func(a *sdpwire.HelloAck) { a.MajV = 0 }, false},
		{"SDP-6.2.2.2-2", func(a *sdpwire.HelloAck) { a.MinV = 9 }, true},
		{"SDP-6.2.2.3-2", func(a *sdpwire.HelloAck) { a.MaxAdverts = 0 }, false},
		{"SDP-6.2.2.3-2", func(a *sdpwire.HelloAck) { a.MaxAdverts = 1 }, true},
		{"SDP-8.1.1-25", func(a *sdpwire.HelloAck) { a.LocIRD = 0 }, false},
		{"SDP-8.1.1-25", func(a *sdpwire.HelloAck) { a.LocORD = 0 }, false},
		{"SDP-8.1.1-25", func(a *sdpwire.HelloAck) { a.LocIRD, a.LocORD = 1, 1 }, true},
		{"D-07", func(a *sdpwire.HelloAck) { a.Bufs = 2 }, false},
		{"D-07", func(a *sdpwire.HelloAck) { a.Bufs = 3 }, true},
		{"D-07", func(a *sdpwire.HelloAck) { a.ActRcvSz = 36 }, false},
		{"D-07", func(a *sdpwire.HelloAck) { a.ActRcvSz = 37 }, true},
		{"D-07", func(a *sdpwire.HelloAck) { a.ActRcvSz = 1 << 31 }, true},
		{"D-07", func(a *sdpwire.HelloAck) { a.ActRcvSz = 1<<31 + 1 }, false},
	} {
		inBubble(t, v.row, func(t *testing.T) { // [SDP-8.1.1-25] [SDP-6.2.2.1-2] [SDP-6.2.2.3-2]
			a := goodAck
			v.change(&a)
			p, err := dial(t, nil, a.Append(nil, sdpwire.Figure), nil)
			if v.ok && (p.ORD != int(min(a.LocIRD, 16)) || p.PeerMaxAdverts != int(a.MaxAdverts) || p.PeerSize != int(a.ActRcvSz)) {
				t.Errorf("%+v: %+v", a, p)
			}
			var pe *ProtocolError
			if v.ok && err != nil ||
				!v.ok && (!errors.As(err, &pe) || pe.Row != v.row || pe.Message != sdpwire.HelloAckMID.String()) {
				t.Errorf("%+v: %v", a, err)
			}
		})
	}
	inBubble(t, "SDP-6.2.2-1", func(t *testing.T) {
		_, err := dial(t, nil, append(goodAck.Append(nil, sdpwire.Figure), 0), nil)
		var pe *ProtocolError
		if !errors.As(err, &pe) || pe.Row != "SDP-6.2.2-1" || pe.Message != sdpwire.HelloAckMID.String() {
			t.Error(err)
		}
	})
	inBubble(t, "another message", func(t *testing.T) { // [SDP-8.1.1-25]
		m := sdpwire.Message{MID: sdpwire.Data, Bufs: 9, Len: sdpwire.BSDHLen}
		_, err := dial(t, nil, m.Append(nil, sdpwire.Figure), nil)
		if !errors.Is(err, sdpwire.ErrMID) {
			t.Error(err)
		}
	})
	inBubble(t, "other private data", func(t *testing.T) { // [SDP-8.1.1-25] the private data is ignored
		if _, err := dial(t, []byte("anything"), goodAck.Append(nil, sdpwire.Figure), nil); err != nil {
			t.Error(err)
		}
	})
	inBubble(t, "D-02", func(t *testing.T) { // [SDP-8.1.1-25]
		if _, err := dial(t, goodAck.Append(nil, sdpwire.Figure), goodAck.Append(nil, sdpwire.Figure), nil); err == nil {
			t.Error("taken from the MPA reply")
		}
	})
	inBubble(t, "silence", func(t *testing.T) { // [SDP-8.1.1-25] [D-17]
		begun := time.Now()
		_, err := dial(t, nil, nil, func(w *wirePeer) { w.ended() })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != opt.SetupTimeout {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
	inBubble(t, "lost", func(t *testing.T) { // [SDP-8.1.1-25]
		_, err := dial(t, nil, nil, func(w *wirePeer) { w.qp.CloseWrite() })
		if !errors.Is(err, ErrReset) && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
	inBubble(t, "reset", func(t *testing.T) { // [SDP-8.1.1-25]
		_, err := dial(t, nil, nil, func(w *wirePeer) { w.qp.Abort() })
		if err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	inBubble(t, "broken", func(t *testing.T) { // [SDP-8.1.1-25] the error contains the cause
		_, err := dial(t, nil, nil, func(w *wirePeer) {
			w.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, Remote: iwarp.RemoteAddr{STag: 0x12345},
				SG: []iwarp.SGE{iwarp.Buf([]byte("x"))}, Unsignaled: true})
		})
		var te *iwarp.TerminateError
		if !errors.As(err, &te) {
			t.Error(err)
		}
	})
	inBubble(t, "sdpwire.IBTA", func(t *testing.T) { // [SDP-8.1.1-25] [D-01]
		if _, _, err := dialAs(t, sdpwire.IBTA, 16, nil, goodAck.Append(nil, sdpwire.IBTA), nil); err != nil {
			t.Error(err)
		}
	})
	inBubble(t, "SDP-8.1.1-28", func(t *testing.T) { // [SDP-8.1.1-20] [D-04] MPA limits the depth too
		if _, p, err := dialAs(t, sdpwire.Figure, 1, nil, goodAck.Append(nil, sdpwire.Figure), nil); err != nil ||
			p.ORD != 1 {
			t.Errorf("ORD %d, %v", p.ORD, err)
		}
	})
}

// TestConfig: all Private Buffers and a spare buffer exist before the first message, and the end of
// the stream takes at most two seconds.
func TestConfig(t *testing.T) { // [SDP-8.1.1-5] [SDP-8.1.1-6] [SDP-8.1.1-7] [SDP-8.1.1-18] [D-08] [D-49]
	a, b := testkit.TCPPair(t)
	p, q := testkit.Pipe()
	defer p.Close()
	defer q.Close()
	for _, v := range []struct {
		nc     net.Conn
		pooled bool
	}{{a, true}, {b, true}, {p, false}} {
		opt, err := (&Options{RecvBuffers: 7, RecvBufferSize: 5000, NoResize: true}).complete()
		if err != nil {
			t.Fatal(err)
		}
		s, err := newSetup(opt, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.config(v.nc)
		if len(s.in.slots) != 8 || s.in.size != 5000 || cfg.RecvDepth != 8 || cfg.Source != s.in ||
			!cfg.Polled || cfg.CloseTimeout != 2*time.Second {
			t.Errorf("%d buffers of %d bytes, %+v", len(s.in.slots), s.in.size, cfg)
		}
		if s.pooled != v.pooled {
			t.Errorf("%T: pooled %t", v.nc, s.pooled)
		}
		if err := cfg.Prepare(new(iwarp.QueuePair)); err != nil || s.qp == nil {
			t.Errorf("%v, %v", s.qp, err)
		}
	}
}

// TestRawHelloFails sends errors in a raw Hello, or in the MPA Request after it.
func TestRawHelloFails(t *testing.T) { // [D-02] [D-16]
	opt, err := (&Options{}).complete()
	if err != nil {
		t.Fatal(err)
	}
	good := goodHello.Append(nil, sdpwire.Figure)
	long := slices.Clone(good)
	binary.BigEndian.PutUint32(long[4:], 33) // Len
	adverts := goodHello
	adverts.MaxAdverts = 0
	for _, v := range []struct {
		what string
		sent []byte
		why  Reason // reason of a refusal
		is   error  // error of an accepted greeting
	}{
		{"another length", long, ReasonHello, nil},
		{"nothing", make([]byte, 32), ReasonHello, nil},
		{"no advertisements", adverts.Append(nil, sdpwire.Figure), ReasonAdverts, nil},
		{"cut off", good[:31], 0, io.EOF},
		{"no Request", good, 0, io.ErrUnexpectedEOF},
		{"a cut Request", append(slices.Clone(good), mpaKey...), 0, io.ErrUnexpectedEOF},
	} {
		inBubble(t, v.what, func(t *testing.T) {
			a, b := testkit.Pipe()
			a.Write(v.sent)
			a.CloseWrite()
			nc := &closing{Conn: b}
			_, _, _, err := accept(t.Context(), peekable(nc), opt, nil,
				func(*setup, greeting) Reason { return ReasonUnknown })
			var ref *RefusedError
			if errors.As(err, &ref) != (v.is == nil) || ref != nil && ref.Reason != v.why ||
				v.is != nil && !errors.Is(err, v.is) {
				t.Errorf("%v, want %v or %v", err, v.why, v.is)
			}
			if nc.closed == 0 {
				t.Error("the connection is left open")
			}
			a.Close()
		})
	}
	// MPA revision 1 follows the Hello. In revision 1 the acceptor sends first.
	inBubble(t, "D-03", func(t *testing.T) {
		a, b := testkit.Pipe()
		a.Write(goodHello.Append(nil, sdpwire.Figure))
		up := make(chan error, 1)
		var c *Conn
		go func() {
			var err error
			c, err = memAccept(t, b, memSide{})
			up <- err
		}()
		w := &wirePeer{t: t}
		cfg := w.config(nil)
		cfg.Interop.Plain, cfg.Interop.NoNudge = true, true
		if _, err := iwarp.Client(t.Context(), a, cfg); err != nil {
			t.Fatal(err)
		}
		if _, b := w.next(); len(b) != sdpwire.HelloAckLen {
			t.Errorf("%x", b)
		}
		if err := <-up; err != nil {
			t.Fatal(err)
		}
		c.Abort()
		w.close()
		<-c.Done()
	})
}
