package sdp

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// A wirePeer is a peer controlled by the test message by message, over iwarp.
type wirePeer struct {
	t      testing.TB
	qp     *iwarp.QueuePair
	cq     *iwarp.CompletionQueue
	bufs   [][]byte
	layout sdpwire.Layout
	seq    uint32
	ack    uint32
	more   bool // whether sent messages wait for the next one
}

var goodHello = sdpwire.Hello{Bufs: 32, MajV: 1, MinV: 1, MaxAdverts: 8, DesRemRcvSz: 1 << 14,
	LocalRcvSz: 1 << 14, LocIRD: 8, LocORD: 8}

func (w *wirePeer) config(private []byte) *iwarp.Config {
	dev := iwarp.NewDevice(iwarp.DeviceConfig{})
	cq, err := dev.NewCQ(512)
	if err != nil {
		w.t.Fatal(err)
	}
	w.cq = cq
	return &iwarp.Config{Device: dev, SendCQ: cq, RecvCQ: cq, RecvDepth: 64, Private: private,
		CloseTimeout: time.Second,
		Prepare: func(qp *iwarp.QueuePair) error {
			w.qp = qp
			w.bufs = make([][]byte, 40)
			for i := range w.bufs {
				w.bufs[i] = make([]byte, 1<<16)
				if err := qp.PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{iwarp.Buf(w.bufs[i])}}); err != nil {
					return err
				}
			}
			return nil
		}}
}

// dialWire connects to a listener, and sends raw before the MPA Request, if raw is not nil, and
// private as private data.
func dialWire(t testing.TB, addr string, raw, private []byte) (*wirePeer, error) {
	w := &wirePeer{t: t}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if raw != nil {
		nc.Write(raw)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	_, err = iwarp.Client(ctx, nc, w.config(private))
	return w, err
}

// next returns the next completion and the message. The message is nil if the stream has ended.
func (w *wirePeer) next() (iwarp.Completion, []byte) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for {
		e, err := w.cq.Wait(ctx)
		if err != nil {
			w.t.Fatalf("nothing came: %v", err)
		}
		if e.Op != iwarp.OpRecv {
			continue
		}
		if e.Status != iwarp.StatusOK {
			return e, nil
		}
		b := append([]byte(nil), w.bufs[e.ID][:e.Len]...)
		w.qp.PostRecv(iwarp.RecvWR{ID: e.ID, SG: []iwarp.SGE{iwarp.Buf(w.bufs[e.ID])}})
		return e, b
	}
}

// message returns the next message other than an empty Data, parsed.
func (w *wirePeer) message() (sdpwire.Message, iwarp.Completion, []byte) {
	w.t.Helper()
	for {
		e, b := w.next()
		if b == nil {
			return sdpwire.Message{}, e, nil
		}
		m, n, err := sdpwire.Parse(b, w.layout)
		if err != nil {
			w.t.Fatalf("%x: %v", b, err)
		}
		w.ack = m.MSeq
		if m.MID == sdpwire.Data && m.PayloadLen() == 0 && m.Flags == 0 {
			continue
		}
		return m, e, b[n:]
	}
}

func (w *wirePeer) send(m sdpwire.Message, payload string) { w.sendOp(m, payload, iwarp.OpSend, 0) }

func (w *wirePeer) sendOp(m sdpwire.Message, payload string, op iwarp.Op, inv uint32) {
	m.MSeq, m.MSeqAck = w.seq, w.ack
	if m.Bufs == 0 {
		m.Bufs = 32
	}
	w.seq++
	m.Len = uint32(m.MID.HeaderLen() + len(payload))
	b := append(m.Append(nil, w.layout), payload...)
	w.qp.Post(iwarp.SendWR{Op: op, Invalidate: inv, SG: []iwarp.SGE{iwarp.Buf(b)}, Unsignaled: true, More: w.more})
}

func (w *wirePeer) close() {
	w.qp.Abort()
	w.qp.Close()
}

// ended waits until the stream has ended.
func (w *wirePeer) ended() {
	w.t.Helper()
	for {
		if _, b := w.next(); b == nil {
			return
		}
	}
}

// connectWire returns a peer after the set-up with a listener, and the accepted connection.
func connectWire(t testing.TB, opt Options) (*wirePeer, *Conn) {
	t.Helper()
	l, err := Listen("127.0.0.1:0", &opt)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w, err := dialWire(t, l.Addr().String(), nil, goodHello.Append(nil, sdpwire.Figure))
	if err != nil {
		t.Fatal(err)
	}
	_, b := w.next()
	if _, _, err := sdpwire.ParseHelloAck(b, sdpwire.Figure); err != nil {
		t.Fatalf("HelloAck: %x: %v", b, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	c, err := l.AcceptConn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return w, c
}

func TestSDP_8_1_1_Accepting(t *testing.T) {
	opt := Options{RecvBuffers: 9, RecvBufferSize: 8192, MaxAdverts: 5, ReadDepth: 6}
	l, err := Listen("127.0.0.1:0", &opt)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := func(h sdpwire.Hello, layout sdpwire.Layout, raw bool, tail ...byte) sdpwire.HelloAck {
		t.Helper()
		b := append(h.Append(nil, layout), tail...)
		var w *wirePeer
		if raw {
			w, err = dialWire(t, l.Addr().String(), b, nil)
		} else {
			w, err = dialWire(t, l.Addr().String(), nil, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		e, p := w.next()
		// HelloAck must be the first message. [SDP-8.1.1-16] [SDP-8.1.1-17] [SDP-8.1.1-22]
		// [SDP-14.2-1] [SDP-6.2.2-1]
		if !e.Solicited || len(p) != sdpwire.HelloAckLen {
			t.Errorf("HelloAck of %d bytes, solicited %t", len(p), e.Solicited)
		}
		a, _, err := sdpwire.ParseHelloAck(p, layout)
		if err != nil {
			t.Fatalf("%x: %v", p, err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.(*Conn).Path(); got.Layout != Layout(layout) || got.RawHello != raw || !got.SDP {
			t.Errorf("path %+v", got)
		}
		c.(*Conn).Abort()
		<-c.(*Conn).Done()
		return a
	}
	for _, layout := range []sdpwire.Layout{sdpwire.Figure, sdpwire.IBTA} { // [D-01]
		for _, raw := range []bool{false, true} { // [SDP-8.1.1-2] [SDP-8.1.1-10] [D-02]
			a := accepted(goodHello, layout, raw)
			// [SDP-8.1.1-19] [SDP-6.2.2.1-1] [SDP-6.2.2.2-1] [SDP-6.2.2.3-1] [SDP-6.2.2.5-1]
			// [SDP-6.2.2.6-1] [SDP-6.2-1] [SDP-10.3-1] [SDP-10-2]
			want := sdpwire.HelloAck{Bufs: 9, MajV: 1, MinV: 1, MaxAdverts: 5, ActRcvSz: 1 << 14, LocIRD: 6, LocORD: 6}
			if a != want {
				t.Errorf("%+v, want %+v", a, want)
			}
		}
	}
	t.Run("SDP-8.1.1-21", func(t *testing.T) {
		h := goodHello
		h.LocIRD = 2
		if a := accepted(h, sdpwire.Figure, false); a.LocORD != 2 || a.LocIRD < 1 { // [SDP-8.1.1-20] [D-04]
			t.Errorf("%+v", a)
		}
	})
	t.Run("SDP-6.2.1.4-2", func(t *testing.T) {
		for _, c := range []struct{ des, act uint32 }{{4096, 4096}, {65536, 65536}, {1 << 31, 8192}, {0, 8192}, {100, 8192}} { // [SDP-6.2.1.4-3] [D-07] [D-14]
			h := goodHello
			h.DesRemRcvSz = c.des
			if a := accepted(h, sdpwire.Figure, false); a.ActRcvSz != c.act { // [SDP-6.2.2.4-1]
				t.Errorf("wish %d: %d", c.des, a.ActRcvSz)
			}
		}
	})
	t.Run("SDP-6.2.1.2-2", func(t *testing.T) { // [SDP-8.1.1-14] [SDP-8.1.1-15]
		for _, v := range []uint8{0, 2, 15} {
			h := goodHello
			h.MinV = v
			accepted(h, sdpwire.Figure, false)
		}
	})
	t.Run("SDP-8.1.1-12", func(t *testing.T) {
		for _, c := range []struct {
			why    Reason
			change func(*sdpwire.Hello)
		}{
			{ReasonVersion, func(h *sdpwire.Hello) { h.MajV = 0 }}, // [SDP-6.2.1.1-2]
			{ReasonVersion, func(h *sdpwire.Hello) { h.MajV = 2 }},
			{ReasonVersion, func(h *sdpwire.Hello) { h.MajV = 15 }},
			{ReasonAdverts, func(h *sdpwire.Hello) { h.MaxAdverts = 0 }}, // [SDP-6.2.1.3-3]
			{ReasonDepth, func(h *sdpwire.Hello) { h.LocIRD = 0 }},
			{ReasonDepth, func(h *sdpwire.Hello) { h.LocORD = 0 }},
			{ReasonBuffers, func(h *sdpwire.Hello) { h.Bufs = 2 }},        // [SDP-10.3-1] [D-07]
			{ReasonBuffers, func(h *sdpwire.Hello) { h.LocalRcvSz = 36 }}, // [SDP-10-5]
			{ReasonBuffers, func(h *sdpwire.Hello) { h.LocalRcvSz = 1<<31 + 1 }},
		} {
			h := goodHello
			c.change(&h)
			_, err := dialWire(t, l.Addr().String(), nil, h.Append(nil, sdpwire.Figure))
			var rej *iwarp.RejectedError
			if !errors.As(err, &rej) || hex.EncodeToString(rej.Private) != hex.EncodeToString([]byte{0, byte(c.why)}) { // [D-16]
				t.Errorf("%v: %v", c.why, err)
			}
			if _, err := dialWire(t, l.Addr().String(), h.Append(nil, sdpwire.Figure), nil); err == nil {
				t.Errorf("%v: raw Hello accepted", c.why)
			}
		}
		for _, b := range [][]byte{nil, {1, 2, 3}, goodHello.Append(nil, sdpwire.Figure)[:31], append(goodHello.Append(nil, sdpwire.Figure), 0), // [SDP-6.2.1-1]
			append(goodHello.Append(nil, sdpwire.Figure), make([]byte, 16)...)} { // a token that no Expectation has [D-07]
			var rej *iwarp.RejectedError
			if _, err := dialWire(t, l.Addr().String(), nil, b); !errors.As(err, &rej) {
				t.Errorf("%x: %v", b, err)
			}
		}
	})
	// Directly after HelloAck, the peer sends as many messages as HelloAck has announced buffers,
	// less two. [SDP-8.1.1-4]
	t.Run("SDP-8.1.1-18", func(t *testing.T) {
		w, c := connectWire(t, opt)
		defer w.close()
		for range 9 - 2 {
			w.send(sdpwire.Message{MID: sdpwire.Data}, "burst")
		}
		if b := make([]byte, 35); true {
			if n, err := c.ReadFull(b); err != nil || string(b) != strings.Repeat("burst", 7) {
				t.Errorf("%d bytes, %v", n, err)
			}
		}
		shutOne(t, c)
	})
	t.Run("SDP-8.1.2-1", func(t *testing.T) { // after a failed set-up, others are served
		for range 3 {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			nc.Write([]byte("MPA ID"))
			nc.Close()
		}
		accepted(goodHello, sdpwire.Figure, false)
		if n := l.Regions(); n != 0 { // [SDP-8.1.2-2]; TestMain counts goroutines
			t.Errorf("%d regions left", n)
		}
	})
	t.Run("SDP-8.1.1-13", func(t *testing.T) { // [D-59]
		lc := ListenConfig{Filter: func(_, _ net.Addr) bool { return false }}
		l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := Dial(l.Addr().String(), nil); err == nil || l.Refused() == 0 {
			t.Errorf("%v, %d refused", err, l.Refused())
		}
	})
	t.Run("SDP-7.4-31", func(t *testing.T) { // only from the address that the mapper was told
		told := netip.MustParseAddr("127.0.0.2")
		lc := ListenConfig{Filter: func(_, remote net.Addr) bool {
			return remote.(*net.TCPAddr).AddrPort().Addr().Unmap() == told
		}}
		l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := Dial(l.Addr().String(), nil); err == nil || l.Refused() != 1 {
			t.Errorf("another source: %v, %d refused", err, l.Refused())
		}
		d := &Dialer{Net: net.Dialer{LocalAddr: &net.TCPAddr{IP: told.AsSlice()}}}
		c, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.AcceptConn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		shut(t, c.(*Conn), s)
	})
	t.Run("SDP-15-4", func(t *testing.T) { // [D-17] set-ups of one host are limited in number and time
		lc := ListenConfig{MaxPendingPerHost: 2, Options: Options{SetupTimeout: 300 * time.Millisecond}}
		l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var idle []net.Conn
		for range 2 {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, nc)
		}
		var c *Conn
		for deadline := time.Now().Add(testkit.Patience); ; {
			if c, err = Dial(l.Addr().String(), nil); err == nil || time.Now().After(deadline) {
				break
			}
			if l.Refused() == 0 && l.Failed() == 0 { // on a busy machine the idle ones have timed out already
				t.Errorf("failed without being refused: %v", err)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if l.Refused() == 0 && l.Failed() == 0 {
			t.Error("nothing was refused or timed out")
		}
		var s *Conn
		for s == nil || s.RemoteAddr().String() != c.LocalAddr().String() {
			if s != nil { // its dialer has failed, because it was late
				shutOne(t, s)
			}
			if s, err = l.AcceptConn(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		shut(t, c, s)
		for _, nc := range idle {
			nc.Close()
		}
	})
}

// TestSDP_6_2_1_Hello: a Hello contains the values of the options, and nothing else. [SDP-6.2.1-1]
// [SDP-6.2.1-2] [SDP-6.2.1.1-1] [SDP-6.2.1.2-1] [SDP-6.2.1.3-2] [SDP-6.2.1.4-1] [SDP-6.2.1.5-1]
// [SDP-6.2.1.6-1] [SDP-6.2.1.7-1] [SDP-8.1.1-8]
func TestSDP_6_2_1_Hello(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct {
		opt  *Options
		want sdpwire.Hello
	}{
		{&Options{RecvBuffers: 7, RecvBufferSize: 5000, MaxAdverts: 9, ReadDepth: 3},
			sdpwire.Hello{Bufs: 7, MajV: 1, MinV: 1, MaxAdverts: 9, DesRemRcvSz: 5000,
				LocalRcvSz: 5000, LocIRD: 3, LocORD: 3}},
		{nil, sdpwire.Hello{Bufs: 32, MajV: 1, MinV: 1, MaxAdverts: defaultMaxAdverts, DesRemRcvSz: 256<<10 + 64, LocalRcvSz: 256<<10 + 64, // [SDP-10-3]
			LocIRD: defaultReadDepth, LocORD: defaultReadDepth}},
	} {
		dialed := make(chan error, 1)
		go func() {
			_, err := Dial(l.Addr().String(), tc.opt)
			dialed <- err
		}()
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		req, err := iwarp.ReadRequest(context.Background(), nc, nil, (&wirePeer{t: t}).config(nil))
		if err != nil {
			t.Fatal(err)
		}
		if h, n, err := sdpwire.ParseHello(req.Private(), sdpwire.Figure); err != nil ||
			n != len(req.Private()) || h != tc.want {
			t.Errorf("%+v: Hello %+v in %d bytes, %v", tc.opt, h, len(req.Private()), err)
		}
		if err := req.Reject(nil); err != nil {
			t.Error(err)
		}
		if err := <-dialed; err == nil {
			t.Error("connected")
		}
	}
}

// serveWire accepts a single connection and answers the Hello with ack. change, if not nil, may
// change the configuration of the stream. then is called with the peer. serveWire returns the
// address.
func serveWire(t testing.TB, ack []byte, change func(*iwarp.Config), then func(*wirePeer)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		nc, err := l.Accept()
		if err != nil {
			return
		}
		w := &wirePeer{t: t}
		cfg := w.config(nil)
		if change != nil {
			change(cfg)
		}
		qp, err := iwarp.Server(context.Background(), nc, cfg)
		if err != nil {
			t.Error(err)
			return
		}
		defer w.close()
		h, n, err := sdpwire.ParseHello(qp.PeerPrivate(), sdpwire.Figure)
		if err != nil || n != len(qp.PeerPrivate()) || h.MajV != 1 || h.MinV != 1 ||
			h.MaxAdverts == 0 || h.LocIRD == 0 || h.LocORD == 0 ||
			h.Bufs < 4 || h.LocalRcvSz < 37 || h.DesRemRcvSz > 1<<31 {
			t.Errorf("Hello %+v, %v", h, err)
		}
		if ack != nil {
			qp.Post(iwarp.SendWR{Op: iwarp.OpSendSE, SG: []iwarp.SGE{iwarp.Buf(ack)}, Unsignaled: true})
		}
		if then != nil {
			then(w)
		} else {
			select {
			case <-qp.Ended():
			case <-qp.PeerClosed():
			case <-time.After(testkit.Patience):
				t.Error("the dialler kept the connection")
			}
		}
	}()
	return l.Addr().String()
}

var goodAck = sdpwire.HelloAck{Bufs: 32, MajV: 1, MinV: 1, MaxAdverts: 8, ActRcvSz: 1 << 14, LocIRD: 8, LocORD: 8}

func TestSDP_8_1_1_Connecting(t *testing.T) {
	for _, c := range []struct {
		row    string
		change func(*sdpwire.HelloAck)
	}{
		{"SDP-6.2.2.1-2", func(a *sdpwire.HelloAck) { a.MajV = 2 }},
		{"SDP-6.2.2.3-2", func(a *sdpwire.HelloAck) { a.MaxAdverts = 0 }},
		{"SDP-8.1.1-25", func(a *sdpwire.HelloAck) { a.LocIRD = 0 }},
		{"SDP-8.1.1-25", func(a *sdpwire.HelloAck) { a.LocORD = 0 }},
		{"D-07", func(a *sdpwire.HelloAck) { a.Bufs = 2 }},
		{"D-07", func(a *sdpwire.HelloAck) { a.ActRcvSz = 36 }},
	} {
		a := goodAck
		c.change(&a)
		_, err := Dial(serveWire(t, a.Append(nil, sdpwire.Figure), nil, nil), nil)
		var pe *ProtocolError
		if !errors.As(err, &pe) || pe.Row != c.row {
			t.Errorf("[%s] %v", c.row, err)
		}
	}
	for _, b := range [][]byte{{1, 2, 3}, append(goodAck.Append(nil, sdpwire.Figure), 0), goodHello.Append(nil, sdpwire.Figure)} { // [SDP-6.2.2-1]
		if _, err := Dial(serveWire(t, b, nil, nil), nil); err == nil {
			t.Errorf("%x taken for HelloAck", b)
		}
	}
	for _, v := range []uint8{0, 2, 15} { // [SDP-6.2.2.2-2] [SDP-8.1.1-26] [SDP-8.1.1-27]
		a := goodAck
		a.MinV = v
		c, err := Dial(serveWire(t, a.Append(nil, sdpwire.Figure), nil, func(w *wirePeer) { w.message() }), nil)
		if err != nil {
			t.Errorf("minor version %d: %v", v, err)
			continue
		}
		c.Write([]byte("x"))
		c.Abort()
		<-c.Done()
	}
	t.Run("SDP-8.1.1-11", func(t *testing.T) { // nothing is sent before HelloAck
		quiet := make(chan bool, 1)
		addr := serveWire(t, nil, nil, func(w *wirePeer) {
			_, ok := w.cq.Poll()
			for end := time.Now().Add(200 * time.Millisecond); !ok && time.Now().Before(end); {
				_, ok = w.cq.Poll()
			}
			quiet <- !ok
			w.qp.Post(iwarp.SendWR{Op: iwarp.OpSendSE,
				SG: []iwarp.SGE{iwarp.Buf(goodAck.Append(nil, sdpwire.Figure))}, Unsignaled: true})
			// A write directly after the set-up needs no message of the peer. [SDP-8.1.1-31]
			if m, _, p := w.message(); m.MID != sdpwire.Data || string(p) != "early" || m.MSeq != 0 {
				t.Errorf("%v %q", &m, p)
			}
		})
		c, err := Dial(addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !<-quiet {
			t.Error("something was sent before HelloAck")
		}
		if _, err := c.Write([]byte("early")); err != nil {
			t.Error(err)
		}
		shutOne(t, c)
	})
	// The peer sends HelloAck and directly afterwards a burst of messages. [SDP-8.1.1-5]
	// [SDP-8.1.1-6]
	t.Run("SDP-8.1.1-7 SDP-8.1.1-9 SDP-8.1.1-24", func(t *testing.T) {
		addr := serveWire(t, goodAck.Append(nil, sdpwire.Figure), nil, func(w *wirePeer) {
			for range defaultRecvBuffers - 2 {
				w.send(sdpwire.Message{MID: sdpwire.Data}, "burst")
			}
			w.ended()
		})
		c, err := Dial(addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5*(defaultRecvBuffers-2))
		if n, err := c.ReadFull(b); err != nil || string(b) != strings.Repeat("burst", defaultRecvBuffers-2) {
			t.Errorf("%d bytes, %v", n, err)
		}
		shutOne(t, c)
	})
	t.Run("SDP-8.1.1-29", func(t *testing.T) { // [SDP-8.1.1-28]
		a := goodAck
		a.LocIRD = 2
		addr := serveWire(t, a.Append(nil, sdpwire.Figure), nil, func(w *wirePeer) { w.ended() })
		c, err := Dial(addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := c.qp.ORD(); n != 2 {
			t.Errorf("ORD %d", n)
		}
		shutOne(t, c)
	})
	t.Run("D-02", func(t *testing.T) { // HelloAck is in the MPA reply
		addr := serveWire(t, nil, func(cfg *iwarp.Config) { cfg.Private = goodAck.Append(nil, sdpwire.Figure) }, nil)
		if _, err := Dial(addr, nil); err == nil || !strings.Contains(err.Error(), "MPA reply") {
			t.Error(err)
		}
	})
	t.Run("D-03", func(t *testing.T) { // revision 1: the acceptor sends first
		l, err := Listen("127.0.0.1:0", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		w := &wirePeer{t: t}
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		cfg := w.config(goodHello.Append(nil, sdpwire.Figure))
		cfg.Interop.Plain, cfg.Interop.NoNudge = true, true
		if _, err := iwarp.Client(context.Background(), nc, cfg); err != nil {
			t.Fatal(err)
		}
		defer w.close()
		if _, b := w.next(); len(b) != sdpwire.HelloAckLen {
			t.Errorf("%x", b)
		}
		c, err := l.AcceptConn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		c.Abort()
		<-c.Done()
	})
	t.Run("SDP-8.1.2-1", func(t *testing.T) { // the stream ends during set-up
		addr := serveWire(t, nil, nil, func(w *wirePeer) {})
		if _, err := Dial(addr, nil); err == nil {
			t.Error("no error")
		}
		// The dialed listener never answers. [D-17]
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := Dial(l.Addr().String(), &Options{SetupTimeout: 50 * time.Millisecond}); err == nil {
			t.Error("no error")
		}
	})
	t.Run("D-16", func(t *testing.T) {
		l, err := Listen("127.0.0.1:0", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		d := &Dialer{}
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		opt, _ := d.complete()
		_, err = d.client(context.Background(), nc, opt, Path{}, make([]byte, tokenLen))
		var ref *RefusedError
		if !errors.As(err, &ref) || ref.Reason != ReasonToken {
			t.Error(err)
		}
	})
}

func shutOne(t testing.TB, c *Conn) {
	t.Helper()
	c.Abort()
	select {
	case <-c.Done():
	case <-time.After(testkit.Patience):
		t.Error("connection lives on")
	}
}

// TestSDP_8_2_2_6 breaks rules of the protocol. Each violation must end the connection: the typed
// error names the row, earlier bytes are delivered, and no resources are left. [SDP-8.2.2-6]
// [SDP-15-1]
func TestSDP_8_2_2_6(t *testing.T) {
	for _, c := range []struct {
		row  string
		send func(w *wirePeer)
	}{
		{"SDP-6.1.5-2", func(w *wirePeer) { w.seq++; w.send(sdpwire.Message{MID: sdpwire.Data}, "x") }},
		{"SDP-6.1.1-3", func(w *wirePeer) { w.send(sdpwire.Message{MID: 0x2a}, "") }},                      // reserved
		{"SDP-6.1.1-3", func(w *wirePeer) { w.send(sdpwire.Message{MID: 0x45}, strings.Repeat("x", 16)) }}, // experimental [SDP-6.1.1-4] [D-76]
		{"SDP-6.1.4-1", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.DisConn}, "x") }},
		{"SDP-6.1.2-5", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.SendSm, Flags: sdpwire.OOBPres}, "") }},
		{"SDP-6.3.2.1-2", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.SrcAvail}, "x") }},
		{"SDP-9.2-2", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.SrcAvail, Size: 9000}, "") }},
		{"SDP-12-10", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.SinkAvail, Size: 9000}, "") }},
		{"SDP-9.2-13", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.RdmaRdCompl, Size: 1}, "") }},
		{"SDP-6.3.8.2-1", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.ModeChange, Mode: 5}, "") }},
		{"SDP-10-4", func(w *wirePeer) { w.send(sdpwire.Message{MID: sdpwire.Data}, strings.Repeat("x", 1<<14)) }},
	} {
		t.Run(c.row, func(t *testing.T) {
			w, conn := connectWire(t, Options{RecvBufferSize: 1 << 14})
			defer w.close()
			w.send(sdpwire.Message{MID: sdpwire.Data}, "before")
			c.send(w)
			b, err := io.ReadAll(conn)
			var pe *ProtocolError
			if !errors.As(err, &pe) || pe.Row != c.row || string(b) != "before" {
				t.Errorf("%q, %v", b, err)
			}
			if _, err := conn.Write([]byte("x")); !errors.As(err, &pe) {
				t.Errorf("write: %v", err)
			}
			w.ended()
			conn.Close()
			<-conn.Done()
		})
	}
	t.Run("raw", func(t *testing.T) { // the message is shorter than a header
		w, conn := connectWire(t, Options{})
		defer w.close()
		w.qp.Post(iwarp.SendWR{Op: iwarp.OpSend, SG: []iwarp.SGE{iwarp.Buf([]byte{1, 2, 3})}, Unsignaled: true})
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("no error")
		}
		conn.Close()
		<-conn.Done()
	})
	t.Run("D-49", func(t *testing.T) { // the error wraps the cause, the error of the layers below
		w, conn := connectWire(t, Options{})
		w.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, Remote: iwarp.RemoteAddr{STag: 0x12345},
			SG: []iwarp.SGE{iwarp.Buf([]byte("x"))}, Unsignaled: true})
		var te *iwarp.TerminateError
		if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &te) || !errors.Is(err, ErrReset) {
			t.Error(err)
		}
		w.close()
		conn.Close()
		<-conn.Done()
	})
}

// TestSDP_9_Wire tests the four mechanisms against a peer as source and as sink. The peer's Reads
// and Writes cause no events [SDP-14.2-3], and the peer's Sends are unsolicited where allowed
// [D-73]. [SDP-14.1-1] [SDP-8.1.1-1] [SDP-8.1.1-32] [SDP-5-4]
func TestSDP_9_Wire(t *testing.T) {
	pinned := Options{SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 1000,
		RecvThreshold: 4096, RecvBufferSize: 4096, NoResize: true}
	t.Run("read zcopy source", func(t *testing.T) {
		w, c := connectWire(t, pinned)
		defer w.close()
		data := []byte(strings.Repeat("abcdefgh", 1000))
		errc := make(chan error, 1)
		go func() {
			n, err := c.Write(data)
			if n != len(data) && err == nil {
				err = io.ErrShortWrite
			}
			errc <- err
		}()
		m, e, p := w.message()
		if m.MID != sdpwire.SrcAvail || len(p) != 1 || m.Size != 8000 || e.Solicited { // [SDP-14.2-2]
			t.Fatalf("%v", &m)
		}
		// The whole buffer is readable, but not one byte more. [SDP-6.3.2.1-1] [SDP-6.3.2.2-2]
		// [SDP-9.2-19] [D-80]
		got := make([]byte, 8000)
		if s := w.read(m.STag, m.VA, got); s != iwarp.StatusOK || string(got) != string(data) {
			t.Errorf("%v", s)
		}
		select {
		case err := <-errc:
			t.Errorf("[SDP-9.2-18] write ended before the acknowledgement: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		w.sendOp(sdpwire.Message{MID: sdpwire.RdmaRdCompl, Size: 7999}, "", iwarp.OpSendSEInvalidate, m.STag)
		if err := <-errc; err != nil {
			t.Error(err)
		}
		// After the RdmaRdCompl the buffer is not readable. [SDP-9.2-23]
		if s := w.read(m.STag, m.VA, got[:1]); s == iwarp.StatusOK {
			t.Error("readable after the completion")
		}
		shutOne(t, c)
	})
	t.Run("read zcopy sink", func(t *testing.T) {
		w, c := connectWire(t, pinned)
		defer w.close()
		data := []byte(strings.Repeat("ABCDEFGH", 1000))
		mr, err := w.qp.Register(data, iwarp.LocalOnly)
		if err != nil {
			t.Fatal(err)
		}
		win, err := w.qp.Bind(mr, 1, 7000, iwarp.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		w.send(sdpwire.Message{MID: sdpwire.SrcAvail, Size: 7000, STag: win.STag(), VA: win.TO()}, string(data[1:6]))
		// If the payload of the message was received before the Read began, the Read returns only
		// the payload of the message.
		got := make([]byte, 7000)
		n, err := io.ReadFull(c, got)
		if err != nil || string(got) != string(data[1:7001]) {
			t.Errorf("%d bytes, %v", n, err)
		}
		m, e, _ := w.message()
		// [SDP-6.3.7.1-3] [SDP-9.2-20] [SDP-14.2-1]
		if m.MID != sdpwire.RdmaRdCompl || m.Size != 6995 || !e.Solicited || !e.Invalidated || e.STag != win.STag() {
			t.Errorf("%v %+v", &m, e)
		}
		shutOne(t, c)
	})
	t.Run("write zcopy source", func(t *testing.T) {
		o := pinned
		o.SendPolicy = PinPipelined
		w, c := connectWire(t, o)
		defer w.close()
		room := make([]byte, 9000)
		mr, err := w.qp.Register(room, iwarp.LocalOnly)
		if err != nil {
			t.Fatal(err)
		}
		win, err := w.qp.Bind(mr, 3, 8500, iwarp.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("small"))
		if m, _, _ := w.message(); m.MID != sdpwire.ModeChange || m.Mode != sdpwire.Pipelined { // [SDP-12.3-1]
			t.Fatalf("%v", &m)
		}
		if m, _, p := w.message(); m.MID != sdpwire.Data || string(p) != "small" {
			t.Fatalf("%v", &m)
		}
		w.send(sdpwire.Message{MID: sdpwire.SinkAvail, Size: 8500, STag: win.STag(), VA: win.TO(), NonDiscards: 1}, "")
		data := []byte(strings.Repeat("01234567", 1000))
		w.send(sdpwire.Message{MID: sdpwire.Data}, "go")
		if _, err := c.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Write(data); n != len(data) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		m, e, _ := w.message()
		if m.MID != sdpwire.RdmaWrCompl || m.Size != 8000 || !e.Invalidated || e.STag != win.STag() || !e.Solicited || string(room[3:8003]) != string(data) { // [SDP-9.3-8]
			t.Errorf("%v %+v", &m, e)
		}
		shutOne(t, c)
	})
	t.Run("write zcopy sink", func(t *testing.T) {
		w, c := connectWire(t, pinned)
		defer w.close()
		w.send(sdpwire.Message{MID: sdpwire.ModeChange, Mode: sdpwire.Pipelined}, "")
		got := make([]byte, 5000)
		type res struct {
			n   int
			err error
		}
		ch := make(chan res, 1)
		go func() {
			n, err := c.Read(got)
			ch <- res{n, err}
		}()
		m, e, _ := w.message()
		if m.MID != sdpwire.SinkAvail || m.Size != 5000 || e.Solicited { // [SDP-14.2-2] [SDP-9.3-3]
			t.Fatalf("%v", &m)
		}
		data := []byte(strings.Repeat("w", 4321))
		w.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf(data)},
			Remote: iwarp.RemoteAddr{STag: m.STag, TO: m.VA}, Unsignaled: true})
		w.sendOp(sdpwire.Message{MID: sdpwire.RdmaWrCompl, Size: 4321}, "", iwarp.OpSendSE, 0)
		r := <-ch
		if r.err != nil || string(got[:r.n]) != string(data) {
			t.Errorf("%d, %v", r.n, r.err)
		}
		// A late RDMA Write fails. [SDP-9.3-11] [SDP-8.2.1-15]
		w.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf(data)},
			Remote: iwarp.RemoteAddr{STag: m.STag, TO: m.VA}, Unsignaled: true})
		if _, err := c.Read(got); err == nil {
			t.Error("a late write went through")
		}
		shutOne(t, c)
	})
	t.Run("read deadline", func(t *testing.T) { // [SDP-9.5.5-1] [SDP-9.5.5-11]
		w, c := connectWire(t, pinned)
		defer w.close()
		w.send(sdpwire.Message{MID: sdpwire.ModeChange, Mode: sdpwire.Pipelined}, "")
		w.send(sdpwire.Message{MID: sdpwire.Data}, "x")
		c.Read(make([]byte, 1))
		ch := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 5000))
			ch <- err
		}()
		if m, _, _ := w.message(); m.MID != sdpwire.SinkAvail {
			t.Fatalf("%v", &m)
		}
		c.SetReadDeadline(time.Now())
		if m, e, _ := w.message(); m.MID != sdpwire.SinkAvailCancel || !e.Solicited {
			t.Fatalf("%v", &m)
		}
		w.sendOp(sdpwire.Message{MID: sdpwire.SinkCancelAck}, "", iwarp.OpSendSE, 0)
		var ne net.Error
		if err := <-ch; !errors.As(err, &ne) || !ne.Timeout() {
			t.Error(err)
		}
		shutOne(t, c)
	})
	t.Run("write deadline", func(t *testing.T) { // [SDP-9.5.4-1] [D-32]
		w, c := connectWire(t, pinned)
		defer w.close()
		type res struct {
			n   int
			err error
		}
		ch := make(chan res, 1)
		go func() {
			n, err := c.Write(make([]byte, 5000))
			ch <- res{n, err}
		}()
		m, _, _ := w.message()
		w.sendOp(sdpwire.Message{MID: sdpwire.RdmaRdCompl, Size: 99}, "", iwarp.OpSendSE, 0)
		c.SetWriteDeadline(time.Now())
		if m, e, _ := w.message(); m.MID != sdpwire.SrcAvailCancel || !e.Solicited {
			t.Fatalf("%v", &m)
		}
		w.sendOp(sdpwire.Message{MID: sdpwire.SendSm}, "", iwarp.OpSendSE, 0)
		r := <-ch
		var ne net.Error
		if r.n != 100 || !errors.As(r.err, &ne) || !ne.Timeout() || m.MID != sdpwire.SrcAvail {
			t.Errorf("%d, %v", r.n, r.err)
		}
		shutOne(t, c)
	})
	t.Run("close", func(t *testing.T) { // [SDP-6.2-2] [SDP-6.2.3-1] [SDP-8.2.1-1] [SDP-14.2-2]
		w, c := connectWire(t, pinned)
		defer w.close()
		c.Write([]byte("last"))
		c.CloseWrite()
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) { // [SDP-8.2.1-2]
			t.Error(err)
		}
		if _, _, p := w.message(); string(p) != "last" {
			t.Errorf("%q", p)
		}
		if m, e, _ := w.message(); m.MID != sdpwire.DisConn || e.Solicited {
			t.Errorf("%v", &m)
		}
		w.send(sdpwire.Message{MID: sdpwire.Data}, "more") // [SDP-8.2.1-3]
		w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
		if b, err := io.ReadAll(c); string(b) != "more" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		select { // [SDP-8.2.1-23] the LLP ends after both directions
		case <-w.qp.PeerClosed():
		case <-time.After(testkit.Patience):
			t.Error("no FIN")
		}
		w.qp.CloseWrite()
		c.Close()
		<-c.Done()
	})
	t.Run("abort", func(t *testing.T) { // [SDP-8.2.2-1] [SDP-6.2.4-1] [SDP-8.2.2-7]
		w, c := connectWire(t, pinned)
		defer w.close()
		c.CloseWrite()
		if m, _, _ := w.message(); m.MID != sdpwire.DisConn {
			t.Errorf("%v", &m)
		}
		w.send(sdpwire.Message{MID: sdpwire.Data}, "")
		c.SetLinger(0)
		c.Close()
		t.Run("SDP-8.2.2-1", func(t *testing.T) {
			if m, e, b := w.message(); b == nil || m.MID != sdpwire.AbortConn || !e.Solicited {
				t.Errorf("%v, %v", &m, e.Status)
			}
		})
		w.qp.CloseWrite()
		w.ended()
		<-c.Done()
	})
	t.Run("aborted", func(t *testing.T) { // [SDP-8.2.2-4] [SDP-6.2.4-3]
		w, c := connectWire(t, pinned)
		defer w.close()
		w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
		w.sendOp(sdpwire.Message{MID: sdpwire.AbortConn}, "", iwarp.OpSendSE, 0)
		for {
			_, err := c.Read(make([]byte, 1))
			if errors.Is(err, ErrReset) {
				break
			}
			if err != io.EOF { // only the DisConn had arrived when the Read ended
				t.Fatal(err)
			}
		}
		c.Close()
		<-c.Done()
	})
	// The stream ends without DisConn. [SDP-8.2.2-4] [SDP-4.2-1] [SDP-8.2.1-5] [SDP-8.2.1-7]
	t.Run("lost", func(t *testing.T) {
		w, c := connectWire(t, pinned)
		if n, err := c.Write([]byte("gone")); n != 4 || err != nil {
			t.Error(err)
		}
		w.close()
		if _, err := io.ReadAll(c); !errors.Is(err, ErrReset) {
			t.Error(err)
		}
		c.SetLinger(1)
		if err := c.Close(); !errors.Is(err, ErrReset) {
			t.Errorf("close: %v", err)
		}
		<-c.Done()
	})
}

// read reads memory of the connection under test by RDMA Read.
func (w *wirePeer) read(stag uint32, to uint64, b []byte) iwarp.Status {
	w.t.Helper()
	w.qp.Post(iwarp.SendWR{ID: 77, Op: iwarp.OpRead, SG: []iwarp.SGE{iwarp.Buf(b)},
		Remote: iwarp.RemoteAddr{STag: stag, TO: to}})
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for {
		e, err := w.cq.Wait(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		if e.Op == iwarp.OpRead {
			return e.Status
		}
	}
}
