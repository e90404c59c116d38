package sdp

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// stalled returns a connection whose peer gives no more credit, and the peer. A write of n bytes
// waits for credit, and no call waits for the write.
func stalled(t *testing.T, opt Options, n int) (*wirePeer, *Conn) {
	t.Helper()
	w, c := memWire(t, memSide{opt: opt}, smallHello)
	if _, err := c.StartWrite(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	return w, c
}

// TestMayLeave: the call of a write may return once the remaining bytes fit the send buffer and
// were copied, and no Send refers to the memory of the call.
func TestMayLeave(t *testing.T) {
	const size = 3000
	for _, v := range []struct {
		what string
		room int // room in the send buffer beyond the remaining bytes
		base int // bytes that were removed from the buffer of the write
		// Number of the last Send that refers to memory of callers, relative to the last complete
		// Send.
		lent uint64
		want bool
		own  bool
	}{
		{"room for all", 0, 0, 0, true, true},
		{"a byte too few", -1, 0, 0, false, false},
		{"room for all of a rest", 0, 500, 0, true, true},
		{"a byte too few for a rest", -1, 500, 0, false, false},
		{"a Send under way", 0, 0, 1, false, true},
	} {
		inBubble(t, "SDP-9.5.6-2", func(t *testing.T) {
			_, c := stalled(t, Options{}, size)
			c.mu.Lock()
			defer c.unlock()
			o := c.calls.writes[0]
			o.onDone = nil
			off, ok := c.m.Detachable(o.id)
			if !ok || off <= v.base || off >= size {
				t.Fatalf("sent %d of %d, %t", off, size, ok)
			}
			for i := range o.buf {
				o.buf[i] = byte(i)
			}
			want := bytes.Clone(o.buf[off:])
			o.base, o.buf = v.base, o.buf[v.base:]
			c.calls.held = 700
			c.calls.room = 700 + size - off + v.room
			c.send.lent = c.send.done + v.lent
			if got := c.calls.mayLeave(c.m, &c.send, o); got != v.want || o.own != v.own {
				t.Errorf("%s: may leave %t, copied %t", v.what, got, o.own)
			}
			if v.own && (o.base != off || !bytes.Equal(o.buf, want) || c.calls.held != 700+size-off || o.held != size-off) {
				t.Errorf("%s: %d bytes from %d on were copied, %d are held", v.what, len(o.buf), o.base, c.calls.held)
			}
			if !v.own && (c.calls.held != 700 || o.base != v.base) {
				t.Errorf("%s: %d bytes from %d on, %d are held", v.what, len(o.buf), o.base, c.calls.held)
			}
			if v.own { // a second call of mayLeave must not copy again
				p := &o.buf[0]
				c.calls.room = 1 << 20
				if c.calls.mayLeave(c.m, &c.send, o); &o.buf[0] != p || c.calls.held != 700+size-off {
					t.Errorf("%s: copied twice", v.what)
				}
			}
		})
	}
	inBubble(t, "advertised", func(t *testing.T) { // [SDP-9.5.6-2]
		w, c := memWire(t, memSide{opt: Options{SendPolicy: PinCombined, SendThreshold: 1000}}, goodHello)
		if _, err := c.StartWrite(make([]byte, 3000)); err != nil {
			t.Fatal(err)
		}
		if m, _, _ := w.message(); m.MID != sdpwire.SrcAvail {
			t.Fatalf("%v", &m)
		}
		locked(c, func() {
			if o := c.calls.writes[0]; c.calls.mayLeave(c.m, &c.send, o) || o.own {
				t.Error("memory that the peer may read is left")
			}
		})
	})
}

// TestJoin: small writes are appended to a waiting write in memory of the connection, up to the
// limits of the memory.
func TestJoin(t *testing.T) {
	const held = 10_000
	for _, v := range []struct {
		what      string
		len, room int // length of the write, and room in the send buffer beyond the held bytes
		waits     int // bytes that wait before the write
		lent      bool
		closing   bool
		want      bool
	}{
		{"small", 100, 1000, 2000, false, false, true},
		{"the room there is", 1000, 1000, 2000, false, false, true},
		{"a byte more", 1001, 1000, 2000, false, false, false},
		{"the greatest", 32 << 10, 1 << 20, 2000, false, false, true},
		{"greater", 32<<10 + 1, 1 << 20, 2000, false, false, false},
		{"much waits", 100, 1 << 20, 64 << 10, false, false, true},
		{"more waits", 100, 1 << 20, 64<<10 + 1, false, false, false},
		{"a write with a call", 100, 1000, 2000, true, false, false},
		{"nothing may follow", 100, 1000, 2000, false, true, false},
	} {
		inBubble(t, "D-78", func(t *testing.T) {
			_, c := stalled(t, Options{SendBuffer: 1 << 20}, 5000)
			c.mu.Lock()
			defer c.unlock()
			o := c.calls.writes[0]
			o.onDone = nil
			if !c.calls.mayLeave(c.m, &c.send, o) {
				t.Fatal("it is not copied")
			}
			mine := o.buf
			o.own = !v.lent
			o.buf = make([]byte, v.waits)
			o.held = v.waits
			c.calls.held, c.calls.room = held, held+v.room
			if v.closing {
				c.m.CloseWrite(c.now(), nil)
			}
			queued := c.m.SendQueue()
			p := bytes.Repeat([]byte("p"), v.len)
			got := c.calls.join(c.m, p)
			added := 0
			if v.want {
				added = v.len
			}
			if got != v.want || c.m.SendQueue() != queued+added || o.held != v.waits+added ||
				c.calls.held != held+added ||
				len(o.buf) != v.waits+added || !bytes.Equal(o.buf[v.waits:], p[:added]) {
				t.Errorf("%s: joined %t, %d bytes wait, %d and %d are held", v.what, got,
					len(o.buf), o.held, c.calls.held)
			}
			o.own, o.buf = true, append(mine, o.buf[v.waits:]...)
		})
	}
	inBubble(t, "nothing waits", func(t *testing.T) { // [D-78]
		_, c := memWire(t, memSide{}, goodHello)
		locked(c, func() {
			if c.calls.join(c.m, []byte("x")) {
				t.Error("joined what is not there")
			}
		})
	})
	// All bytes keep their order, and no copied byte is advertised. [D-78] [SDP-9.5.6-2]
	inBubble(t, "the last of several", func(t *testing.T) {
		w, c := memWire(t, memSide{opt: Options{SendPolicy: PinCombined, SendThreshold: 1000}}, smallHello)
		var want []byte
		for i := range 20 { // each call returns, because the write is copied or joins
			p := bytes.Repeat([]byte{byte('a' + i)}, 300)
			locked(c, func() { c.flow.streak = 5 })
			if n, err := c.Write(p); n != len(p) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			locked(c, func() {
				if c.flow.streak != 0 {
					t.Errorf("write %d leaves a streak of %d", i, c.flow.streak)
				}
			})
			want = append(want, p...)
		}
		locked(c, func() {
			if len(c.calls.writes) != 1 || !c.calls.writes[0].own {
				t.Errorf("%d writes wait", len(c.calls.writes))
			}
		})
		var got []byte
		for len(got) < len(want) {
			m, _, p := w.message()
			if m.MID != sdpwire.Data {
				t.Fatalf("%v", &m)
			}
			got = append(got, p...)
			w.credit()
		}
		if !bytes.Equal(got, want) {
			t.Error("other bytes came")
		}
		time.Sleep(time.Second)
		locked(c, func() {
			if c.calls.held != 0 || len(c.calls.writes) != 0 {
				t.Errorf("%d bytes are held, %d writes wait", c.calls.held, len(c.calls.writes))
			}
		})
	})
}

// TestKeepSends checks that keepSends ends writes waiting only for TCP. Requests that refer to
// memory of these writes must be copied, and Reads must keep their targets.
func TestKeepSends(t *testing.T) {
	inBubble(t, "D-32", func(t *testing.T) {
		_, c := memWire(t, memSide{}, goodHello)
		lent, sink := []byte{1, 2, 3}, make([]byte, 3)
		c.mu.Lock()
		defer c.unlock()
		backlog := []backlogged{{wr: iwarp.SendWR{Op: iwarp.OpSend}}, {wr: iwarp.SendWR{Op: iwarp.OpRead}},
			{wr: iwarp.SendWR{Op: iwarp.OpWrite}}}
		for i, p := range [][]byte{lent, sink, lent} {
			backlog[i].sg[0] = iwarp.Buf(p)
		}
		first, second, queued := newOp(), newOp(), newOp()
		ended := 0
		first.onDone = func() { ended++ }
		second.onDone = func() { ended++ }
		queued.after = 9
		c.send.backlog, c.calls.ending, c.calls.writes = backlog, []*op{first, second}, []*op{queued}
		c.send.done, c.send.lent = 4, 9
		old := c.calls.ending
		c.keepSends()
		c.send.backlog, c.calls.writes = nil, nil
		for _, i := range []int{0, 2} {
			if p := backlog[i].sg[0].Buf; &p[0] == &lent[0] || !slices.Equal(p, lent) {
				t.Errorf("request %d is in memory that was given back, or lost", i)
			}
		}
		if p := backlog[1].sg[0].Buf; &p[0] != &sink[0] {
			t.Error("a Read goes elsewhere")
		}
		if ended != 2 || first.state != opDone || second.state != opDone || len(c.calls.ending) != 0 || old[0] != nil || old[1] != nil {
			t.Errorf("%d of 2 writes have ended, %d wait", ended, len(c.calls.ending))
		}
		if c.send.lent != 4 || queued.after != 0 {
			t.Errorf("Send %d is the last that names memory of others, want 4; a write waits for Send %d, want none",
				c.send.lent, queued.after)
		}
		c.send.done, c.send.lent = 0, 0
	})
}
