package sdp

import (
	"bytes"
	"io"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/sdpcore"
	"viaduct/internal/testkit"
	"viaduct/iwarp"
)

// until waits until ok returns true. It calls ok with mu of c held.
func until(t *testing.T, c *Conn, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, what, func() bool {
		c.mu.Lock()
		defer c.unlock()
		return ok()
	})
}

// TestD81_NoCallWaits checks that an unanswered lent write is cancelled in time, even if no call
// waits.
func TestD81_NoCallWaits(t *testing.T) {
	opt := Options{SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 1000}
	a, b := pair(t, opt, opt)
	time.Sleep(2 * attendTime)
	b.mu.Lock() // while b is locked, the peer answers nothing
	x, err := a.StartWrite(make([]byte, 5000))
	if err != nil {
		b.unlock()
		t.Fatal(err)
	}
	until(t, a, "SrcAvailCancel", func() bool { return a.m.Stats().SentSrcCancels > 0 })
	b.unlock()
	if n, err := x.Wait(t.Context()); n != 5000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	shut(t, a, b)
}

// TestNoCallReceives: arrivals are handled even if no call waits or ever did.
func TestNoCallReceives(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	defer shut(t, a, b)
	for range 10 {
		if _, err := a.Write(make([]byte, 50)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, b, "all bytes", func() bool {
		n := 0
		for _, h := range b.recv.holds[b.recv.head:] {
			n += len(h.b)
		}
		return n == 500
	})
}

// TestReadAfterStreamEnded reads after the stream below has ended. Bytes received before both ends
// closed must be read, followed by the end. [SDP-8.2.1-23]
func TestReadAfterStreamEnded(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, b); n != 0 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	want := bytes.Repeat([]byte("last "), 1000)
	if _, err := b.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.qp.Ended():
	case <-time.After(testkit.Patience):
		t.Fatal("the stream does not end")
	}
	a.mu.Lock()
	a.streamEnded() // as the handler of flushed completions does
	a.unlock()
	if got, err := io.ReadAll(a); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestNoAlarmForThePast checks that a write whose time late has passed, but which may not return,
// sets no alarm. A later event lets the write return.
func TestNoAlarmForThePast(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	if err := a.SetWriteBuffer(0); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock() // while b is locked, the peer gives no credit
	written := make(chan error, 1)
	go func() {
		_, err := a.Write(make([]byte, 32<<20))
		written <- err
	}()
	until(t, a, "a write that has waited long enough", func() bool {
		return len(a.calls.writes) == 1 && a.calls.writes[0].late != 0 && a.now() > a.calls.writes[0].late && a.alarm.attend == 0
	})
	a.mu.Lock()
	a.alarm.at = 0
	a.calls.letLeave(a.m, &a.send, a.now)
	a.setAlarm()
	if at := a.alarm.at; at != 0 && at == a.calls.writes[0].late {
		t.Errorf("an alarm for %v, which was %v ago", at, a.now()-at)
	}
	a.unlock()
	b.unlock()
	a.Abort()
	b.Abort()
	if err := testkit.Await(t, "the end of the write", written); err == nil {
		t.Error("written")
	}
	shut(t, a, b)
}

// TestKeepBacklog checks that no request waiting for room in the send queue refers to memory given
// back.
func TestKeepBacklog(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	defer shut(t, a, b)
	lent, sink := []byte{1, 2, 3}, make([]byte, 3)
	a.mu.Lock()
	defer a.unlock()
	backlog := []backlogged{{wr: iwarp.SendWR{Op: iwarp.OpSend}}, {wr: iwarp.SendWR{Op: iwarp.OpRead}}}
	backlog[0].sg[0], backlog[1].sg[0] = iwarp.Buf(lent), iwarp.Buf(sink)
	a.send.backlog = backlog
	a.keepSends()
	a.send.backlog = nil
	if p := backlog[0].sg[0].Buf; &p[0] == &lent[0] || !bytes.Equal(p, lent) {
		t.Error("what is to be sent is in memory that was given back, or lost")
	}
	if p := backlog[1].sg[0].Buf; &p[0] != &sink[0] {
		t.Error("a Read goes elsewhere")
	}
}

// TestFlowEndsAtDeadline: a read polling a stream at intervals stops at the deadline, however many
// bytes arrive.
func TestFlowEndsAtDeadline(t *testing.T) {
	d := &driver{born: time.Now()} // a poll would panic, because d has no stream
	d.calls.rd.set(time.Unix(1, 0))
	d.flow.on.Store(true)
	d.receive(&d.calls.rd, newOp())
}

// TestHeld: a read waits for the rest of a message for a limited time, and each useless wait makes
// more of the later reads wary.
func TestHeld(t *testing.T) {
	var h held
	now := sdpcore.Time(0)
	for i, skips := range []int{1, 3, 7} {
		if h.isWary() {
			t.Fatalf("%d: wary", i)
		}
		h.begin(now)
		if h.over(now + heldTime - 1) {
			t.Errorf("%d: over too soon", i)
		}
		if now += heldTime; !h.over(now) {
			t.Errorf("%d: not over", i)
		}
		h.on = false
		for n := range skips {
			if !h.isWary() {
				t.Errorf("%d: not wary the %d. time", i, n)
			}
		}
	}
	h.begin(now)
	h.begin(now) // more bytes have arrived, which halves the number of wary reads
	h.over(now + heldTime)
	wary := 0
	for h.isWary() {
		wary++
	}
	if wary != 7 {
		t.Errorf("%d reads are wary after what came, want 7", wary)
	}
}

// TestTooSoon: a reader polls again at once if the last poll returned many bytes or was long ago,
// or if the bytes are not a stream of large messages.
func TestTooSoon(t *testing.T) {
	if !attend.CanNap {
		t.Skip("SKIPPED: no short sleeps on this system")
	}
	for _, c := range []struct {
		what           string
		streak, length int
		got            int
		after          sdpcore.Time
		want           bool
	}{
		{"a stream, little came", streakLen, bulkSize, napBytes - 1, napTime - 1, true},
		{"much came", streakLen, bulkSize, napBytes, napTime - 1, false},
		{"long ago", streakLen, bulkSize, napBytes - 1, napTime, false},
		{"a short streak", streakLen - 1, bulkSize, napBytes - 1, napTime - 1, false},
		{"small messages", streakLen, bulkSize - 1, napBytes - 1, napTime - 1, false},
	} {
		f := &flow{streak: c.streak - c.length}
		f.message(c.length)
		f.brought(c.got, false, func() sdpcore.Time { return 1 })
		if got := f.tooSoon(1 + c.after); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}
