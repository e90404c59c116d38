package sdp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/sdpcore"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// A memListener accepts the connections in memory made by dial.
type memListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newMemListener() *memListener {
	return &memListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *memListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *memListener) Addr() net.Addr { return &net.TCPAddr{} }

// dial passes a connection to the listener and returns the other end.
func (l *memListener) dial() *testkit.Conn {
	a, b := testkit.Pipe()
	l.conns <- peekable(b)
	return a
}

// listenMem returns a Listener for connections in memory, closed when the test ends.
func listenMem(t testing.TB, lc ListenConfig) (*Listener, *memListener) {
	t.Helper()
	ml := newMemListener()
	l, err := lc.NewListener(ml)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, ml
}

// connectTo connects a peer to a listener in memory. It does not wait for the HelloAck.
func connectTo(t testing.TB, ml *memListener, private []byte) *wirePeer {
	t.Helper()
	w := &wirePeer{t: t}
	if err := w.connect(ml.dial(), private); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

// connect starts the stream of the peer as Initiator.
func (w *wirePeer) connect(nc net.Conn, private []byte) error {
	_, err := iwarp.Client(context.Background(), nc, w.config(private))
	return err
}

// TestSuspendWire checks the messages of a suspension, the awaited events, and the failures.
func TestSuspendWire(t *testing.T) { // [SDP-13.1.1-3] [SDP-13.1.1-4] [SDP-13.1.1-5] [SDP-8.1.1-1] [SDP-8.1.1-32] [SDP-8.2.1-14]
	suspend := func(ctx context.Context, c *Conn) (<-chan outcome, func() *State) {
		var st *State
		ch := started(func() (n int, err error) {
			st, err = c.Suspend(ctx, 5000)
			return 0, err
		})
		return ch, func() *State { return st }
	}
	inBubble(t, "SDP-13.1.1-4", func(t *testing.T) {
		w, c := memWire(t, memSide{}, smallHello)
		c.SetWriteBuffer(0)
		locked(c, func() { c.token = []byte("token") })
		read := started(func() (int, error) { return c.ReadFull(make([]byte, 10)) })
		write := started(func() (int, error) { return c.Write(make([]byte, 3000)) })
		if !waits(read) || !waits(write) {
			t.Fatal("nothing waits")
		}
		sus, state := suspend(t.Context(), c)
		if !waits(sus) {
			t.Fatal("it does not wait for the peer")
		}
		if r := <-read; r.n != 0 || !isOp(r.err, "read", net.ErrClosed) {
			t.Errorf("Read: %d, %v", r.n, r.err)
		}
		if r := <-write; r.n != 1008 || !isOp(r.err, "write", net.ErrClosed) {
			t.Errorf("Write: %d, %v", r.n, r.err)
		}
		if _, err := c.Suspend(t.Context(), 5001); !isOp(err, "suspend", net.ErrClosed) {
			t.Errorf("a second one: %v", err)
		}
		if m, _, p := w.message(); m.MID != sdpwire.Data || len(p) != 1008 {
			t.Errorf("%v", &m)
		}
		w.credit()
		if m, e, _ := w.message(); m.MID != sdpwire.SuspComm || m.Port != 5000 || !e.Solicited {
			t.Errorf("%v", &m)
		}
		w.send(sdpwire.Message{MID: sdpwire.Data}, "meanwhile")
		w.sendOp(sdpwire.Message{MID: sdpwire.SuspCommAck}, "", iwarp.OpSendSE, 0)
		if r := <-sus; r.err != nil {
			t.Fatal(r.err)
		}
		st := state()
		if string(st.Held) != "meanwhile" || len(st.Unsent) != 0 || string(st.Token) != "token" || st.core.Held != 9 {
			t.Errorf("%+v", st)
		}
		<-c.Done()
		if _, err := c.Suspend(t.Context(), 5001); !isOp(err, "suspend", net.ErrClosed) {
			t.Errorf("once more: %v", err)
		}
		w.ended()
	})
	inBubble(t, "the context ends", func(t *testing.T) { // [SDP-13.1.1-5]
		w, c := memWire(t, memSide{}, goodHello)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("given up"))
		defer cancel()
		begun := time.Now()
		sus, _ := suspend(ctx, c)
		if r := <-sus; !isOp(r.err, "suspend", context.Cause(ctx)) || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", r.err, time.Since(begun))
		}
		w.ended()
		<-c.Done()
		if d := time.Since(begun); d != time.Second {
			t.Errorf("the connection is gone after %v", d)
		}
	})
	inBubble(t, "D-53", func(t *testing.T) { // the peer does not answer
		w, c := memWire(t, memSide{}, goodHello)
		begun := time.Now()
		sus, _ := suspend(t.Context(), c)
		if r := <-sus; !isOp(r.err, "suspend", ErrSuspend) || time.Since(begun) < 5*time.Second {
			t.Errorf("%v after %v", r.err, time.Since(begun))
		}
		w.ended()
	})
	inBubble(t, "the stream ends", func(t *testing.T) { // [SDP-13.1.1-5]
		w, c := memWire(t, memSide{}, goodHello)
		sus, _ := suspend(t.Context(), c)
		if m, _, _ := w.message(); m.MID != sdpwire.SuspComm {
			t.Errorf("%v", &m)
		}
		w.close()
		if r := <-sus; !isOp(r.err, "suspend", ErrSuspend) {
			t.Error(r.err)
		}
	})
	inBubble(t, "the peer moves and does not come back", func(t *testing.T) {
		w, c := memWire(t, memSide{}, goodHello)
		locked(c, func() { c.send.backlog = []backlogged{{wr: iwarp.SendWR{Op: iwarp.OpWrite, More: true}}} })
		w.sendOp(sdpwire.Message{MID: sdpwire.SuspComm, Port: 5000}, "", iwarp.OpSendSE, 0)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("given up"))
		defer cancel()
		begun := time.Now()
		sus, _ := suspend(ctx, c)
		if r := <-sus; !isOp(r.err, "suspend", context.Cause(ctx)) || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", r.err, time.Since(begun))
		}
	})
}

// TestComeBackFails follows a peer whose new holder cannot be reached. The connection must be lost,
// waiting calls must end, and the SuspCommAck must have been sent before.
func TestComeBackFails(t *testing.T) {
	inBubble(t, "SDP-13.1.1-8", func(t *testing.T) { // [SDP-13.1.1-9] [D-51] [D-56] [SDP-8.1.1-1]
		w, c := memWire(t, memSide{}, goodHello) // its peer has no address to connect to
		read := started(func() (int, error) { return c.Read(make([]byte, 10)) })
		if !waits(read) {
			t.Fatal("nothing waits")
		}
		w.sendOp(sdpwire.Message{MID: sdpwire.SuspComm, Port: 5000}, "", iwarp.OpSendSE, 0)
		if m, e, _ := w.message(); m.MID != sdpwire.SuspCommAck || !e.Solicited {
			t.Errorf("%v", &m)
		}
		w.ended()
		w.qp.CloseWrite()
		if r := <-read; r.n != 0 || !isOp(r.err, "read", ErrReset) {
			t.Errorf("%d, %v", r.n, r.err)
		}
		<-c.Done()
	})
}

// TestResumeStream checks which state a connection keeps on a new stream, and which state ends with
// the old stream.
func TestResumeStream(t *testing.T) {
	inBubble(t, "SDP-13.1.1-17", func(t *testing.T) {
		w, c := memWire(t, memSide{}, goodHello)
		w.send(sdpwire.Message{MID: sdpwire.Data}, "held one;")
		w.send(sdpwire.Message{MID: sdpwire.Data}, "held two;")
		time.Sleep(time.Second)
		under := newOp()
		over := false
		under.after, under.onDone = 99, func() { over = true }
		locked(c, func() { c.send.backlog = []backlogged{{wr: iwarp.SendWR{Op: iwarp.OpWrite, More: true}}} })
		w.sendOp(sdpwire.Message{MID: sdpwire.SuspComm, Port: 5000}, "", iwarp.OpSendSE, 0)
		time.Sleep(time.Second)

		a, b := testkit.Pipe()
		next := &wirePeer{t: t}
		served := make(chan error, 1)
		go func() {
			qp, err := iwarp.Server(context.Background(), b, next.config(nil))
			if err == nil {
				err = qp.Post(iwarp.SendWR{Op: iwarp.OpSendSE,
					SG: []iwarp.SGE{iwarp.Buf(goodAck.Append(nil, sdpwire.Figure))}, Unsignaled: true})
			}
			served <- err
		}()
		s, p, err := connect(t.Context(), a, c.opt, sdpwire.Figure, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		defer next.close()
		old := c.qp
		c.mu.Lock()
		if !c.m.Suspended() || len(c.recv.holds) != 2 {
			t.Fatalf("suspended %t, %d held", c.m.Suspended(), len(c.recv.holds))
		}
		private := [][]byte{c.recv.holds[0].b, c.recv.holds[1].b}
		c.state = streamMoved
		c.send.backlog, c.calls.ending = nil, []*op{under}
		c.send.last, c.send.ended = 7, false
		c.recv.local = [][]byte{{1}}
		c.resume(s, p)
		for i, h := range c.recv.holds {
			if h.index != -1 || &h.b[0] == &private[i][0] {
				t.Errorf("what is held is in a Private Buffer of the old stream: %d", h.index)
			}
			clear(private[i])
		}
		if !over || len(c.calls.ending) != 0 {
			t.Error("a write waits for the old stream")
		}
		select {
		case <-c.flushed:
			t.Error("a DisConn counts as sent that has to go again")
		default:
		}
		if c.state != streamUp || c.recv.local != nil || c.qp == old || c.recv.in != s.in {
			t.Errorf("stream state %d, %d Reads", c.state, len(c.recv.local))
		}
		c.unlock()
		if got, err := readN(c, 18); got != "held one;held two;" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		read := started(func() (int, error) { return c.Read(make([]byte, 10)) })
		if !waits(read) {
			t.Fatal("nothing has come")
		}
		next.send(sdpwire.Message{MID: sdpwire.Data}, "after")
		if r := <-read; r.n != 5 || r.err != nil {
			t.Errorf("%d, %v", r.n, r.err)
		}
		if _, err := c.Write([]byte("here")); err != nil {
			t.Error(err)
		}
		if m, _, p := next.message(); m.MID != sdpwire.Data || string(p) != "here" || m.MSeq != 0 {
			t.Errorf("%v %q", &m, p)
		}
		old.Abort()
		old.Close()
	})
}

// TestResumeState checks that the new holder continues where the state stops: reads return held
// bytes first, and unsent bytes are sent first, then a pending DisConn.
func TestResumeState(t *testing.T) { // [SDP-13.1.1-12] [SDP-13.1.1-13] [SDP-13.1.1-14] [SDP-13.1.1-16] [SDP-13.1.1-17]
	token := []byte("0123456789abcdef")
	for _, v := range []struct {
		held, unsent int
		closing      bool
	}{{4, 6, true}, {0, 0, false}, {1, 1, false}, {0, 5000, true}} {
		inBubble(t, "SDP-13.1.1-13", func(t *testing.T) {
			l, ml := listenMem(t, ListenConfig{Options: Options{RecvBufferSize: 9000}})
			exp, err := l.Expect(netip.AddrPort{}, netip.AddrPort{}, false, token)
			if err != nil {
				t.Fatal(err)
			}
			w := &wirePeer{t: t}
			up := make(chan error, 1)
			go func() { up <- w.connect(ml.dial(), append(goodHello.Append(nil, sdpwire.Figure), token...)) }()
			time.Sleep(time.Second)
			if len(up) != 0 {
				t.Fatal("an answer before the state was handed over")
			}
			held, unsent := strings.Repeat("h", v.held), strings.Repeat("u", v.unsent)
			st := &State{Held: []byte(held), Unsent: []byte(unsent), Token: token, core: sdpcore.State{
				RecvSize: 5000, RecvBufs: 9, ORD: 2, Held: v.held, RecvPos: uint64(100 + v.held),
				Closing: v.closing, Unsent: v.unsent}}
			c, err := exp.Resume(t.Context(), st)
			if err != nil {
				t.Fatal(err)
			}
			copy(st.Unsent, strings.Repeat("x", len(st.Unsent))) // the connection has a copy
			if err := <-up; err != nil {
				t.Fatal(err)
			}
			defer func() { c.Abort(); w.close(); <-c.Done() }()
			_, b := w.next()
			if a, _, err := sdpwire.ParseHelloAck(b, sdpwire.Figure); err != nil || a.ActRcvSz != 5000 {
				t.Errorf("%+v, %v", a, err)
			}
			if p := c.Path(); !strings.Contains(p.Why, "moved here") || !p.SDP || p.Local == nil ||
				string(c.token) != string(token) {
				t.Errorf("%+v", p)
			}
			if !v.closing {
				if _, err := c.Write([]byte("more")); err != nil {
					t.Error(err)
				}
				unsent += "more"
			}
			sent := ""
			for len(sent) < len(unsent) {
				m, _, p := w.message()
				if m.MID != sdpwire.Data || m.Flags != 0 {
					t.Fatalf("%v", &m)
				}
				sent += string(p)
			}
			if sent != unsent {
				t.Errorf("%q were sent, want %q", sent, unsent)
			}
			if v.closing {
				if m, _, _ := w.message(); m.MID != sdpwire.DisConn {
					t.Errorf("%v", &m)
				}
				if _, err := c.Write([]byte("x")); !isOp(err, "write", net.ErrClosed) {
					t.Error(err)
				}
			}
			w.sendOp(sdpwire.Message{MID: sdpwire.Data, Flags: sdpwire.OOBPres}, "ab!", iwarp.OpSendSE, 0)
			time.Sleep(time.Second)
			if n, ok := c.UrgentMark(); n != v.held+2 || !ok {
				t.Errorf("the urgent byte is %d ahead, want %d", n, v.held+2)
			}
			if got, err := readN(c, v.held+3); got != held+"ab!" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			locked(c, func() {
				if c.calls.held != 0 || len(c.calls.writes) != 0 {
					t.Errorf("%d bytes are held, %d writes wait", c.calls.held, len(c.calls.writes))
				}
			})
		})
	}
	inBubble(t, "no peer", func(t *testing.T) { // [SDP-13.1.1-12]
		l, _ := listenMem(t, ListenConfig{})
		for range 2 { // a failed Resume has ended its expectation
			exp, err := l.Expect(netip.AddrPort{}, netip.AddrPort{}, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if _, err := exp.Resume(t.Context(), &State{}); !isOp(err, "resume", context.DeadlineExceeded) ||
				time.Since(begun) != ResumeTimeout {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		}
		exp, err := l.Expect(netip.AddrPort{}, netip.AddrPort{}, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() { time.Sleep(time.Second); l.Close() }()
		if _, err := exp.Resume(t.Context(), &State{}); !isOp(err, "resume", net.ErrClosed) {
			t.Error(err)
		}
		if _, err := l.Expect(netip.AddrPort{}, netip.AddrPort{}, false, nil); err != net.ErrClosed {
			t.Errorf("a closed listener expects a connection: %v", err)
		}
	})
}

// TestExpected checks which Hello belongs to a resuming connection.
func TestExpected(t *testing.T) { // [SDP-13.1.1-2] [SDP-13.1.1-13] [SDP-13.1.1-14] [SDP-13.1.1-15] [D-50] [D-07]
	addr := netip.MustParseAddrPort
	tcp := func(s string) net.Addr { return net.TCPAddrFromAddrPort(addr(s)) }
	local, remote := addr("10.0.0.1:80"), addr("10.0.0.2:5000")
	token := []byte("token")
	opt, err := (&Options{RecvBufferSize: 9000}).complete()
	if err != nil {
		t.Fatal(err)
	}
	most := opt.maxRecvSize()
	for _, v := range []struct {
		what          string
		local, remote string
		strict        bool
		token, shown  []byte
		taken         bool
		size          int
		moves         bool
		why           Reason
		wants         int // expected size of the Private Buffers
	}{
		{"the peer", "10.0.0.1:90", "10.0.0.2:6000", false, nil, nil, false, 5000, true, ReasonUnknown, 5000},
		{"mapped addresses", "[::ffff:10.0.0.1]:90", "[::ffff:10.0.0.2]:6000", false, nil, nil, false, 5000, true, ReasonUnknown, 5000},
		{"the same port", "10.0.0.1:80", "10.0.0.2:5000", true, nil, nil, false, 5000, true, ReasonUnknown, 5000},
		{"another port", "10.0.0.1:80", "10.0.0.2:5001", true, nil, nil, false, 5000, false, ReasonToken, 9000},
		{"its token", "10.0.0.1:80", "10.0.0.2:5000", false, token, token, false, 5000, true, ReasonUnknown, 5000},
		{"another token", "10.0.0.1:80", "10.0.0.2:5000", false, token, []byte("tokem"), false, 5000, false, ReasonToken, 9000},
		{"no token", "10.0.0.1:80", "10.0.0.2:5000", false, token, nil, false, 5000, false, ReasonToken, 9000},
		{"a token without need", "10.0.0.1:80", "10.0.0.2:5000", false, nil, token, false, 5000, false, ReasonToken, 9000},
		{"another host", "10.0.0.1:80", "10.0.0.3:5000", false, nil, nil, false, 5000, false, ReasonUnknown, 9000},
		{"another host with a token", "10.0.0.1:80", "10.0.0.3:5000", false, nil, []byte("t"), false, 5000, false, ReasonToken, 9000},
		{"another address of ours", "10.0.0.9:80", "10.0.0.2:5000", false, nil, nil, false, 5000, false, ReasonUnknown, 9000},
		{"a second time", "10.0.0.1:80", "10.0.0.2:5000", false, nil, nil, true, 5000, false, ReasonUnknown, 9000},
		{"buffers too small to be", "10.0.0.1:80", "10.0.0.2:5000", false, nil, nil, false, 36, true, ReasonUnknown, 9000},
		{"the smallest", "10.0.0.1:80", "10.0.0.2:5000", false, nil, nil, false, 37, true, ReasonUnknown, 37},
		{"the largest", "10.0.0.1:80", "10.0.0.2:5000", false, nil, nil, false, most, true, ReasonUnknown, most},
		{"larger", "10.0.0.1:80", "10.0.0.2:5000", false, nil, nil, false, most + 1, true, ReasonUnknown, 9000},
	} {
		t.Run("SDP-13.1.1-13", func(t *testing.T) {
			l := &Listener{moves: map[moveKey]*move{}, dead: make(chan struct{})}
			exp, err := l.Expect(local, remote, v.strict, v.token)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Expect(local, remote, false, nil); err == nil {
				t.Error("two of the same addresses")
			}
			exp.m.taken = v.taken
			exp.m.state = &State{core: sdpcore.State{RecvSize: v.size}}
			close(exp.m.ready)
			s := &setup{opt: opt}
			s.opt.RecvThreshold = 1
			m, why := l.expected(s, greeting{token: v.shown}, Path{Local: tcp(v.local), Remote: tcp(v.remote)})
			if (m == exp.m) != v.moves || m != nil && m != exp.m || why != v.why || s.opt.RecvBufferSize != v.wants {
				t.Errorf("%s: moves %t, %v, buffers of %d", v.what, m != nil, why, s.opt.RecvBufferSize)
			}
			if m != nil && (!exp.m.taken || s.opt.RecvThreshold != s.opt.RecvBufferSize) {
				t.Errorf("%s: taken %t, threshold %d", v.what, exp.m.taken, s.opt.RecvThreshold)
			}
			if m == nil && exp.m.taken != v.taken {
				t.Errorf("%s: the move is taken", v.what)
			}
			exp.Cancel()
			exp, err = l.Expect(local, remote, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			exp.Cancel()
			l.closed = true
			if _, err := l.Expect(local, remote, false, nil); err != net.ErrClosed {
				t.Errorf("closed: %v", err)
			}
		})
	}
	// expected waits for the state, for a limited time. [SDP-13.1.1-13]
	inBubble(t, "no state", func(t *testing.T) {
		for _, closes := range []bool{false, true} {
			l := &Listener{moves: map[moveKey]*move{}, dead: make(chan struct{})}
			if _, err := l.Expect(local, remote, false, nil); err != nil {
				t.Fatal(err)
			}
			limit := ResumeTimeout
			if closes {
				limit = time.Second
				time.AfterFunc(limit, func() { close(l.dead) })
			}
			begun := time.Now()
			m, why := l.expected(&setup{opt: opt}, greeting{},
				Path{Local: tcp("10.0.0.1:80"), Remote: tcp("10.0.0.2:5000")})
			if m != nil || why != ReasonBusy || time.Since(begun) != limit {
				t.Errorf("%v, %v after %v", m, why, time.Since(begun))
			}
		}
		synctest.Wait()
	})
}
