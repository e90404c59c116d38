package sdp

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// credit gives the connection credit for more messages with payload, although no message has asked
// for credit.
func (w *wirePeer) credit() {
	w.send(sdpwire.Message{MID: sdpwire.Data, Bufs: 2 * sdpwire.MinBuffers}, "")
}

// isOp reports whether err is a *net.OpError of operation op, and matches want.
func isOp(err error, op string, want error) bool {
	var oe *net.OpError
	return errors.As(err, &oe) && oe.Op == op && errors.Is(err, want)
}

// smallHello is the Hello of a peer with credit for a single message of 1008 bytes of payload.
var smallHello = func() sdpwire.Hello {
	h := goodHello
	h.Bufs, h.LocalRcvSz, h.DesRemRcvSz = sdpwire.MinBuffers, 1024, 1024
	return h
}()

// TestRefusedCalls calls a closed connection, and a connection after its deadline. The call must
// move no bytes. A call with an empty slice must do nothing.
func TestRefusedCalls(t *testing.T) { // [D-32] [D-40] [SDP-4.2-1] [SDP-9.5.3-2] [SDP-9.4-1]
	past := time.Unix(1, 0)
	inBubble(t, "deadline", func(t *testing.T) {
		a, b := memPair(t, Options{}, Options{})
		sent := a.Stats().SentMessages
		a.SetWriteDeadline(past)
		for name, write := range map[string]func([]byte) (int, error){"Write": a.Write, "WriteUrgent": a.WriteUrgent} {
			if n, err := write([]byte("late")); n != 0 || !isOp(err, "write", os.ErrDeadlineExceeded) {
				t.Errorf("%s behind its deadline: %d, %v", name, n, err)
			}
		}
		resp := make([]byte, 4)
		if n, err := a.Exchange([]byte("late"), resp); n != 0 || !isOp(err, "write", os.ErrDeadlineExceeded) {
			t.Errorf("Exchange behind the deadline of writes: %d, %v", n, err)
		}
		a.SetWriteDeadline(time.Time{})
		for name, write := range map[string]func([]byte) (int, error){"Write": a.Write, "WriteUrgent": a.WriteUrgent} {
			if n, err := write(nil); n != 0 || err != nil {
				t.Errorf("%s of nothing: %d, %v", name, n, err)
			}
		}
		if n := a.Stats().SentMessages; n != sent {
			t.Errorf("%d messages were sent", n-sent)
		}
		a.SetReadDeadline(past)
		if _, err := b.Write([]byte("here")); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Read(resp); n != 0 || !isOp(err, "read", os.ErrDeadlineExceeded) {
			t.Errorf("Read behind its deadline: %d, %v", n, err)
		}
		a.SetReadDeadline(time.Time{})
		if n, err := a.Read(resp); string(resp[:n]) != "here" || err != nil {
			t.Errorf("%q, %v", resp[:n], err)
		}
	})
	inBubble(t, "closed", func(t *testing.T) {
		a, b := memPair(t, Options{}, Options{})
		go b.Close()
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		for name, write := range map[string]func([]byte) (int, error){"Write": a.Write, "WriteUrgent": a.WriteUrgent} {
			for _, p := range [][]byte{nil, []byte("x")} {
				if n, err := write(p); n != 0 || !isOp(err, "write", net.ErrClosed) {
					t.Errorf("%s of %d bytes: %d, %v", name, len(p), n, err)
				}
			}
		}
		if n, err := a.Read(make([]byte, 1)); n != 0 || !isOp(err, "read", net.ErrClosed) {
			t.Errorf("Read: %d, %v", n, err)
		}
	})
}

// TestSDP_9_3_15: ReadFull fills the slice in a single call, and returns the errors of io.ReadFull
// if the stream ends early.
func TestSDP_9_3_15(t *testing.T) {
	inBubble(t, "SDP-9.3-15", func(t *testing.T) {
		a, b := memPair(t, Options{}, Options{})
		a.SetReadDeadline(time.Now().Add(time.Second))
		begun := time.Now()
		b.Write([]byte("half"))
		p := make([]byte, 8)
		if n, err := a.ReadFull(p); n != 4 || !isOp(err, "read", os.ErrDeadlineExceeded) || string(p[:4]) != "half" {
			t.Errorf("a deadline in the middle: %d, %v", n, err)
		}
		if d := time.Since(begun); d != time.Second {
			t.Errorf("it came after %v", d)
		}
		a.SetReadDeadline(time.Time{})
		full := started(func() (int, error) { return a.ReadFull(p) })
		for _, s := range []string{"1234", "5678"} {
			if !waits(full) {
				t.Fatal("it returned early")
			}
			b.Write([]byte(s))
		}
		if r := <-full; r.n != 8 || r.err != nil || string(p) != "12345678" {
			t.Errorf("%d, %v, %q", r.n, r.err, p)
		}
		go b.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if n, err := a.ReadFull(nil); n != 0 || err != nil {
			t.Errorf("no bytes: %d, %v", n, err)
		}
	})
}

// TestCloseEndsCalls checks that Close and Abort end waiting calls with net.ErrClosed and an exact
// count, even if the peer does nothing.
func TestCloseEndsCalls(t *testing.T) { // [SDP-8.2.1-5] [SDP-8.2.1-7] [SDP-8.2.2-5] [D-49]
	for _, v := range []struct {
		name string
		end  func(*Conn) error
	}{
		{"Close", (*Conn).Close},
		{"linger 0", func(c *Conn) error { c.SetLinger(0); return c.Close() }},
		{"Abort", func(c *Conn) error { c.Abort(); return nil }},
	} {
		inBubble(t, v.name, func(t *testing.T) {
			w, c := memWire(t, memSide{opt: Options{SendBuffer: 1}}, smallHello)
			c.SetWriteBuffer(0)
			read := started(func() (int, error) { return c.Read(make([]byte, 10)) })
			write := started(func() (int, error) { return c.Write(make([]byte, 5000)) })
			if !waits(read) || !waits(write) {
				t.Fatal("nothing to end")
			}
			closed := started(func() (int, error) { return 0, v.end(c) })
			begun := time.Now()
			if r := <-read; r.n != 0 || !isOp(r.err, "read", net.ErrClosed) {
				t.Errorf("Read: %d, %v", r.n, r.err)
			}
			if r := <-write; r.n != 1008 || !isOp(r.err, "write", net.ErrClosed) {
				t.Errorf("Write: %d, %v", r.n, r.err)
			}
			if d := time.Since(begun); d != 0 {
				t.Errorf("the calls ended after %v", d)
			}
			if v.name != "Close" {
				w.ended()
				<-c.Done()
				if d := time.Since(begun); d != 0 {
					t.Errorf("the stream ended after %v", d)
				}
			}
			for what, err := range map[string]error{"Close": c.Close(), "CloseWrite": c.CloseWrite(), "CloseRead": c.CloseRead()} {
				if !isOp(err, "close", net.ErrClosed) {
					t.Errorf("%s afterwards: %v", what, err)
				}
			}
			w.close()
			<-closed
			<-c.Done()
		})
	}
}

// TestSDP_8_2_1_Linger checks how long Close waits, and when the connection is reset.
func TestSDP_8_2_1_Linger(t *testing.T) {
	for _, v := range []struct {
		linger int
		waits  time.Duration
		err    error
		resets time.Duration // when the stream has ended, from the beginning of Close
	}{
		{-1, 10 * time.Second, os.ErrDeadlineExceeded, 60 * time.Second},
		{3, 3 * time.Second, os.ErrDeadlineExceeded, 3 * time.Second},
		{0, 0, nil, 0},
	} {
		inBubble(t, "SDP-8.2.1-11", func(t *testing.T) { // [SDP-8.2.1-5] [SDP-8.2.1-7] [D-78]
			_, c := memWire(t, memSide{}, smallHello)
			// The peer accepts the first message of the write.
			if _, err := c.Write(make([]byte, 5000)); err != nil {
				t.Fatal(err)
			}
			if err := c.SetLinger(v.linger); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if err := c.Close(); !errors.Is(err, v.err) || time.Since(begun) != v.waits ||
				v.err != nil && !isOp(err, "close", v.err) {
				t.Errorf("linger %d: %v after %v", v.linger, err, time.Since(begun))
			}
			<-c.Done()
			// Ending the stream may take two seconds. [D-49]
			if d := time.Since(begun); d < v.resets || d > v.resets+2*time.Second {
				t.Errorf("linger %d: the connection is gone after %v", v.linger, d)
			}
		})
	}
	inBubble(t, "SDP-8.2.1-22", func(t *testing.T) { // all was delivered, so Close need not wait
		w, c := memWire(t, memSide{}, goodHello)
		if _, err := c.Write([]byte("all")); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := c.Close(); err != nil || time.Since(begun) > 10*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if m, _, p := w.message(); m.MID != sdpwire.Data || string(p) != "all" {
			t.Errorf("%v", &m)
		}
		if m, _, _ := w.message(); m.MID != sdpwire.DisConn {
			t.Errorf("%v", &m)
		}
		w.send(sdpwire.Message{MID: sdpwire.Data}, "unwanted") // the connection reads nothing after Close [D-49]
		w.ended()
		<-c.Done()
		if err := c.qp.Err(); err == nil {
			t.Error("unwanted bytes did not reset the stream")
		}
	})
}

// TestCloseHears checks that CloseWrite and Close handle arrivals first, and return the error of a
// received AbortConn.
func TestCloseHears(t *testing.T) {
	for _, v := range []struct {
		name string
		call func(*Conn) error
	}{{"CloseWrite", (*Conn).CloseWrite}, {"Close", (*Conn).Close}} {
		inBubble(t, v.name, func(t *testing.T) { // [SDP-8.2.1-22]
			w, c := memWire(t, memSide{}, goodHello)
			w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
			w.sendOp(sdpwire.Message{MID: sdpwire.AbortConn}, "", iwarp.OpSendSE, 0)
			time.Sleep(time.Second)
			if err := v.call(c); !isOp(err, "close", ErrReset) {
				t.Error(err)
			}
		})
	}
}

// TestCloseReadWire checks that CloseRead drops held bytes, ends a waiting Read, and does not
// affect writes. Later payload must reset the stream.
func TestCloseReadWire(t *testing.T) { // [D-49] [SDP-8.2.1-3]
	inBubble(t, "D-49", func(t *testing.T) {
		w, c := memWire(t, memSide{}, goodHello)
		read := started(func() (int, error) { return c.Read(make([]byte, 10)) })
		if !waits(read) {
			t.Fatal("a Read of nothing")
		}
		if err := c.CloseRead(); err != nil {
			t.Error(err)
		}
		if r := <-read; r.n != 0 || !isOp(r.err, "read", net.ErrClosed) {
			t.Errorf("%d, %v", r.n, r.err)
		}
		if _, err := c.Write([]byte("still")); err != nil {
			t.Error(err)
		}
		if m, _, p := w.message(); m.MID != sdpwire.Data || string(p) != "still" {
			t.Errorf("%v", &m)
		}
		w.send(sdpwire.Message{MID: sdpwire.Data}, "unwanted")
		w.ended()
		if _, err := c.Write([]byte("x")); !errors.Is(err, ErrReadClosed) {
			t.Error(err)
		}
	})
}

// TestUrgentWire checks that an announcement of urgent data sends a value on the channel of Urgent,
// whether Urgent is called before or after the announcement arrives. UrgentMark must return the
// distance to the byte.
func TestUrgentWire(t *testing.T) { // [SDP-9.5.3-9] [SDP-8.1.1-1] [SDP-8.1.1-32]
	got := func(c *Conn) bool {
		select {
		case <-c.Urgent():
			return true
		default:
			return false
		}
	}
	for _, early := range []bool{true, false} {
		inBubble(t, "SDP-9.5.3-9", func(t *testing.T) {
			w, c := memWire(t, memSide{}, goodHello)
			if early && got(c) {
				t.Error("urgent data out of nothing")
			}
			w.send(sdpwire.Message{MID: sdpwire.Data, Flags: sdpwire.OOBPend}, "")
			time.Sleep(time.Second)
			if !got(c) {
				t.Error("the announcement was not told of")
			}
			if got(c) {
				t.Error("it was told of twice")
			}
			if _, ok := c.UrgentMark(); ok {
				t.Error("the byte itself has not come")
			}
			w.sendOp(sdpwire.Message{MID: sdpwire.Data, Flags: sdpwire.OOBPres}, "abc!", iwarp.OpSendSE, 0)
			time.Sleep(time.Second)
			if !got(c) {
				t.Error("the byte was not told of")
			}
			if n, ok := c.UrgentMark(); n != 3 || !ok {
				t.Errorf("%d bytes ahead, %t", n, ok)
			}
			w.send(sdpwire.Message{MID: sdpwire.Data}, "de")
			p := make([]byte, 2)
			if _, err := c.ReadFull(p); err != nil {
				t.Fatal(err)
			}
			if n, ok := c.UrgentMark(); n != 1 || !ok {
				t.Errorf("%d bytes ahead, %t", n, ok)
			}
			if b, err := readN(c, 4); b != "c!de" || err != nil {
				t.Errorf("%q, %v", b, err)
			}
			if _, ok := c.UrgentMark(); ok {
				t.Error("it has been read")
			}
		})
	}
}

// readN reads n bytes with ReadFull.
func readN(c *Conn, n int) (string, error) {
	p := make([]byte, n)
	n, err := c.ReadFull(p)
	return string(p[:n]), err
}

// TestSDP_9_4_ExchangeWire checks the messages of an Exchange, and the cases where Exchange equals
// Write and Read.
func TestSDP_9_4_ExchangeWire(t *testing.T) { // [SDP-9.4-1]
	pinned := Options{SendPolicy: PinPipelined, RecvPolicy: PinPipelined, SendThreshold: 1000,
		RecvThreshold: 2048, RecvBufferSize: 2048, NoResize: true}
	// piped returns a connection whose halves are both in Pipelined Mode.
	piped := func(t *testing.T) (*wirePeer, *Conn) {
		w, c := memWire(t, memSide{opt: pinned}, goodHello)
		w.send(sdpwire.Message{MID: sdpwire.ModeChange, Mode: sdpwire.Pipelined}, "")
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if m, _, _ := w.message(); m.MID != sdpwire.ModeChange {
			t.Fatalf("%v", &m)
		}
		if m, _, _ := w.message(); m.MID != sdpwire.Data {
			t.Fatalf("%v", &m)
		}
		time.Sleep(time.Second) // the peer's change of mode arrives during the sleep
		return w, c
	}
	// The request takes a single message, and RDMA writes the answer into resp.
	inBubble(t, "SDP-9.4-1", func(t *testing.T) {
		w, c := piped(t)
		resp := make([]byte, 5000)
		locked(c, func() { c.flow.streak = streakLen })
		x := started(func() (int, error) { return c.Exchange([]byte("ask"), resp) })
		m, _, p := w.message()
		if m.MID != sdpwire.SinkAvail || string(p) != "ask" || m.Size != 5000 {
			t.Fatalf("%v %q", &m, p)
		}
		locked(c, func() {
			if c.flow.streak != 0 {
				t.Errorf("what it wrote did not end the streak of %d bytes", c.flow.streak)
			}
		})
		w.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf([]byte("answer"))},
			Remote: iwarp.RemoteAddr{STag: m.STag, TO: m.VA}, Unsignaled: true})
		w.sendOp(sdpwire.Message{MID: sdpwire.RdmaWrCompl, Size: 6}, "", iwarp.OpSendSE, 0)
		if r := <-x; r.n != 6 || r.err != nil || string(resp[:6]) != "answer" {
			t.Errorf("%d, %v, %q", r.n, r.err, resp[:6])
		}
		w.sendOp(sdpwire.Message{MID: sdpwire.Data, Flags: sdpwire.OOBPres}, "abc!", iwarp.OpSendSE, 0)
		time.Sleep(time.Second)
		if n, ok := c.UrgentMark(); n != 3 || !ok { // the answer counts as read
			t.Errorf("the urgent byte is %d ahead, %t", n, ok)
		}
	})
	inBubble(t, "no request", func(t *testing.T) {
		w, c := piped(t)
		w.send(sdpwire.Message{MID: sdpwire.Data}, "here")
		resp := make([]byte, 10)
		if n, err := c.Exchange(nil, resp); string(resp[:n]) != "here" || err != nil {
			t.Errorf("%q, %v", resp[:n], err)
		}
	})
	inBubble(t, "no room", func(t *testing.T) {
		w, c := piped(t)
		if n, err := c.Exchange([]byte("tell"), nil); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if m, _, p := w.message(); m.MID != sdpwire.Data || string(p) != "tell" {
			t.Errorf("%v", &m)
		}
	})
	inBubble(t, "no time to read", func(t *testing.T) { // after the read deadline no buffer is offered
		w, c := piped(t)
		c.SetReadDeadline(time.Unix(1, 0))
		if n, err := c.Exchange([]byte("tell"), make([]byte, 5000)); n != 0 ||
			!isOp(err, "read", os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", n, err)
		}
		if m, _, p := w.message(); m.MID != sdpwire.Data || string(p) != "tell" {
			t.Errorf("%v", &m)
		}
		if n := c.Stats().SentSinkAvails; n != 0 {
			t.Errorf("%d SinkAvails", n)
		}
	})
	inBubble(t, "closed", func(t *testing.T) {
		w, c := piped(t)
		x := started(func() (int, error) { return c.Exchange([]byte("ask"), make([]byte, 100)) })
		if m, _, p := w.message(); string(p) != "ask" {
			t.Errorf("%v", &m)
		}
		if !waits(x) {
			t.Fatal("there is no answer")
		}
		go c.Close()
		// The peer gets a SinkAvailCancel for the offered buffer.
		if m, _, _ := w.message(); m.MID == sdpwire.SinkAvailCancel {
			w.sendOp(sdpwire.Message{MID: sdpwire.SinkCancelAck}, "", iwarp.OpSendSE, 0)
		}
		if r := <-x; r.n != 0 || !isOp(r.err, "read", net.ErrClosed) {
			t.Errorf("%d, %v", r.n, r.err)
		}
	})
	inBubble(t, "at the end", func(t *testing.T) {
		w, c := piped(t)
		x := started(func() (int, error) { return c.Exchange([]byte("ask"), make([]byte, 100)) })
		if m, _, p := w.message(); string(p) != "ask" {
			t.Errorf("%v", &m)
		}
		w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
		if r := <-x; r.n != 0 || r.err != io.EOF {
			t.Errorf("%d, %v", r.n, r.err)
		}
	})
	inBubble(t, "reset", func(t *testing.T) {
		w, c := piped(t)
		x := started(func() (int, error) { return c.Exchange([]byte("ask"), make([]byte, 100)) })
		if m, _, p := w.message(); string(p) != "ask" {
			t.Errorf("%v", &m)
		}
		w.close()
		if r := <-x; r.n != 0 || !isOp(r.err, "read", ErrReset) {
			t.Errorf("%d, %v", r.n, r.err)
		}
	})
	inBubble(t, "numbers", func(t *testing.T) { // no two calls have the same number
		w, c := memWire(t, memSide{}, goodHello)
		for range 3 {
			if _, err := c.StartRead(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		var xs []<-chan outcome
		for range 2 {
			xs = append(xs, started(func() (int, error) { return c.Exchange([]byte("ask"), make([]byte, 1)) }))
			if m, _, p := w.message(); string(p) != "ask" {
				t.Fatalf("%v", &m)
			}
		}
		for range 3 {
			if _, err := c.StartRead(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		locked(c, func() {
			seen := map[uint64]bool{}
			for _, o := range c.calls.reads {
				if seen[o.id] {
					t.Errorf("two reads are called %d", o.id)
				}
				seen[o.id] = true
			}
			if len(c.calls.reads) != 8 {
				t.Errorf("%d reads wait, want 8", len(c.calls.reads))
			}
		})
		w.send(sdpwire.Message{MID: sdpwire.Data}, "12345678")
		for _, x := range xs {
			if r := <-x; r.n != 1 || r.err != nil {
				t.Errorf("%d, %v", r.n, r.err)
			}
		}
	})
	// A failed Exchange must not end the reads of other calls.
	inBubble(t, "several", func(t *testing.T) {
		w, c := memWire(t, memSide{opt: Options{SendBuffer: 1}}, smallHello)
		c.SetWriteBuffer(0)
		first := started(func() (int, error) { return c.Exchange([]byte("ask"), make([]byte, 10)) })
		if m, _, p := w.message(); string(p) != "ask" {
			t.Fatalf("%v", &m)
		}
		c.SetWriteDeadline(time.Now().Add(time.Second))
		second := started(func() (int, error) { return c.Exchange([]byte(strings.Repeat("x", 5000)), make([]byte, 10)) })
		if !waits(second) {
			t.Fatal("there is no room for it")
		}
		locked(c, func() {
			if o := c.calls.writes[0]; !o.waited || len(c.calls.reads) != 2 || !c.calls.reads[1].read {
				t.Errorf("%+v and %d reads", o, len(c.calls.reads))
			}
		})
		if r := <-second; r.n != 0 || !isOp(r.err, "write", os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", r.n, r.err)
		}
		if !waits(first) {
			t.Error("the Exchange before it has ended")
		}
		locked(c, func() {
			if len(c.calls.reads) != 1 {
				t.Errorf("%d reads wait, want 1", len(c.calls.reads))
			}
		})
		w.send(sdpwire.Message{MID: sdpwire.Data}, "answer")
		if r := <-first; r.n != 6 || r.err != nil {
			t.Errorf("%d, %v", r.n, r.err)
		}
	})
}

// TestSDP_9_4_ExchangeOffered: an Exchange whose request cannot be sent returns after the peer has
// released the offered buffer.
func TestSDP_9_4_ExchangeOffered(t *testing.T) {
	inBubble(t, "SDP-9.4-1", func(t *testing.T) { // [SDP-9.5.5-1]
		w, c := memWire(t, memSide{opt: Options{SendPolicy: PinPipelined, RecvPolicy: PinPipelined, SendThreshold: 1 << 20, RecvThreshold: 2048, RecvBufferSize: 2048, NoResize: true}}, smallHello)
		c.SetWriteBuffer(0)
		w.send(sdpwire.Message{MID: sdpwire.ModeChange, Mode: sdpwire.Pipelined}, "")
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		for _, want := range []sdpwire.MID{sdpwire.ModeChange, sdpwire.Data} {
			w.credit()
			if m, _, _ := w.message(); m.MID != want {
				t.Fatalf("%v", &m)
			}
		}
		w.credit()
		time.Sleep(time.Second)
		c.SetWriteDeadline(time.Now().Add(time.Second))
		x := started(func() (int, error) { return c.Exchange(make([]byte, 5000), make([]byte, 5000)) })
		m, _, p := w.message()
		if m.MID != sdpwire.SinkAvail || len(p) == 0 {
			t.Fatalf("%v", &m)
		}
		time.Sleep(2 * time.Second)
		for m.MID != sdpwire.SinkAvailCancel {
			w.credit()
			if m, _, _ = w.message(); m.MID != sdpwire.Data && m.MID != sdpwire.SinkAvailCancel {
				t.Fatalf("%v", &m)
			}
		}
		if !waits(x) {
			t.Fatal("it returned while the peer could still write into its buffer")
		}
		w.sendOp(sdpwire.Message{MID: sdpwire.SinkCancelAck, Bufs: 2 * sdpwire.MinBuffers}, "", iwarp.OpSendSE, 0)
		if r := <-x; r.n != 0 || !isOp(r.err, "write", os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", r.n, r.err)
		}
	})
}

// TestBuffersSet checks that SetReadBuffer limits the bytes held in addition to the Private
// Buffers.
func TestBuffersSet(t *testing.T) {
	inBubble(t, "D-79", func(t *testing.T) { // [SDP-8.2.2-5]
		w, c := memWire(t, memSide{opt: Options{RecvBuffers: 4, RecvBufferSize: 512, NoResize: true, ReceiveBuffer: 1000}}, goodHello)
		for _, v := range []struct{ set, send, want int }{
			{-5, 3, 0}, // 0 held bytes: every byte stays in its Private Buffer
			{2, 4, 2},
		} {
			if err := c.SetReadBuffer(v.set); err != nil {
				t.Fatal(err)
			}
			if got := c.opt.ReceiveBuffer; got != max(0, v.set) {
				t.Errorf("set to %d: %d", v.set, got)
			}
			before := c.Stats().CompactedBytes
			for range v.send {
				w.send(sdpwire.Message{MID: sdpwire.Data}, "x")
			}
			time.Sleep(time.Second)
			if got := c.Stats().CompactedBytes - before; got != uint64(v.want) {
				t.Errorf("set to %d: %d bytes were copied out of Private Buffers, want %d", v.set, got, v.want)
			}
			if v.set > 0 {
				continue
			}
			if _, err := readN(c, v.send); err != nil {
				t.Fatal(err)
			}
		}
		c.Abort()
		if err := c.SetReadBuffer(1); !isOp(err, "set", net.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestStreamEnds: a connection closed by both ends ends the stream in order, and an aborted
// connection resets the stream. No memory may stay registered in either case.
func TestStreamEnds(t *testing.T) {
	t.Run("SDP-8.2.1-24", func(t *testing.T) { // [SDP-8.2.1-23] [SDP-6.2-2]
		w, c := connectWire(t, Options{})
		defer w.close()
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
		if m, _, _ := w.message(); m.MID != sdpwire.DisConn {
			t.Errorf("%v", &m)
		}
		select {
		case <-w.qp.PeerClosed():
		case <-w.qp.Ended():
		case <-time.After(testkit.Patience):
			t.Fatal("the stream does not end")
		}
		if err := w.qp.Err(); err != nil {
			t.Errorf("the peer's stream ended with %v", err)
		}
		w.qp.CloseWrite()
		<-c.Done()
	})
	t.Run("SDP-8.2.1-14", func(t *testing.T) { // [SDP-8.2.2-3] [SDP-8.2.2-5]
		w, c := connectWire(t, Options{SendPolicy: PinCombined, SendThreshold: 1000})
		defer w.close()
		write := started(func() (int, error) { return c.Write(make([]byte, 5000)) })
		if m, _, _ := w.message(); m.MID != sdpwire.SrcAvail {
			t.Fatalf("%v", &m)
		}
		dev := c.qp.PD().Device()
		if dev.Regions() == 0 {
			t.Fatal("nothing is advertised")
		}
		c.Abort()
		if r := testkit.Await(t, "the end of the write", write); r.n != 1 || !isOp(r.err, "write", net.ErrClosed) {
			t.Errorf("%d, %v", r.n, r.err)
		}
		select {
		case <-w.qp.Ended():
		case <-time.After(testkit.Patience):
			t.Fatal("the stream does not end")
		}
		if err := w.qp.Err(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("the peer's stream ended with %v", err)
		}
		<-c.Done()
		if n := dev.Regions(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}

// TestKeepAliveSet: SetKeepAlive changes TCP's keepalive, and returns errors.ErrUnsupported if the
// stream has no socket.
func TestKeepAliveSet(t *testing.T) {
	t.Run("SDP-14.3-1", func(t *testing.T) { // [SDP-14.3-2] [D-77]
		a, b := memPair(t, Options{}, Options{})
		if err := a.SetKeepAlive(true); !isOp(err, "set", errors.ErrUnsupported) {
			t.Error(err)
		}
		if err := b.SetKeepAlivePeriod(time.Minute); !isOp(err, "set", errors.ErrUnsupported) {
			t.Error(err)
		}
	})
}

// TestTransferDetached cancels a write after the peer has asked for the bytes by SendSm. The write
// must end, with all bytes counted, once the bytes have been copied and sent.
func TestTransferDetached(t *testing.T) { // [D-32] [SDP-9.5.4-1] [SDP-8.1.1-1]
	inBubble(t, "D-32", func(t *testing.T) {
		w, c := memWire(t, memSide{opt: Options{SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 1000}},
			smallHello)
		x, err := c.StartWrite(make([]byte, 5000))
		if err != nil {
			t.Fatal(err)
		}
		if m, _, _ := w.message(); m.MID != sdpwire.SrcAvail {
			t.Fatalf("%v", &m)
		}
		w.sendOp(sdpwire.Message{MID: sdpwire.SendSm, Bufs: sdpwire.MinBuffers}, "", iwarp.OpSendSE, 0)
		time.Sleep(time.Second)
		locked(c, func() {
			if o := c.calls.writes[0]; o.own || o.state != opWaits {
				t.Fatalf("%+v", o)
			}
		})
		x.Cancel()
		select { // the call returns although the peer gives no credit
		case <-x.Done():
		case <-time.After(testkit.Patience):
			t.Error("the transfer does not end")
		}
		if n, err := x.Wait(t.Context()); n != 5000 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		n := 1
		for n < 5000 {
			w.credit()
			m, _, p := w.message()
			if m.MID != sdpwire.Data {
				t.Fatalf("%v", &m)
			}
			n += len(p)
		}
		if n != 5000 {
			t.Errorf("%d bytes went", n)
		}
		time.Sleep(time.Second)
		locked(c, func() {
			if c.calls.held != 0 || len(c.calls.writes) != 0 {
				t.Errorf("%d bytes are held, %d writes wait", c.calls.held, len(c.calls.writes))
			}
		})
	})
}

// TestTerminateBehindDisConn ends the stream by an error of a lower layer after the peer's DisConn.
// Written bytes may be lost then, and Close must return an error unless the peer has acknowledged
// the bytes.
func TestTerminateBehindDisConn(t *testing.T) {
	for _, acked := range []bool{false, true} {
		inBubble(t, "SDP-8.2.1-7", func(t *testing.T) { // [D-49]
			w, c := memWire(t, memSide{}, goodHello)
			for _, p := range []string{"one", "two"} {
				if _, err := c.Write([]byte(p)); err != nil {
					t.Fatal(err)
				}
				if m, _, _ := w.message(); m.MID != sdpwire.Data {
					t.Fatalf("%v", &m)
				}
			}
			if !acked {
				w.ack = 0
			}
			w.send(sdpwire.Message{MID: sdpwire.DisConn}, "")
			time.Sleep(time.Second)
			w.qp.Post(iwarp.SendWR{Op: iwarp.OpWrite, Remote: iwarp.RemoteAddr{STag: 0x12345},
				SG: []iwarp.SGE{iwarp.Buf([]byte("x"))}, Unsignaled: true})
			<-c.Done()
			want := error(nil)
			if !acked {
				want = ErrReset
			}
			if err := c.Close(); !errors.Is(err, want) {
				t.Errorf("acknowledged %t: %v", acked, err)
			}
		})
	}
}
