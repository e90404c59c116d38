package sdp

import (
	"bytes"
	"io"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
)

// until waits for something that another goroutine brings about, with mu of c
// held while ok looks.
func until(t *testing.T, c *Conn, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		yes := ok()
		c.mu.Unlock()
		if yes {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestD81_NobodyWaits: a call that does not wait may bring about a deadline when
// the connection's own goroutine sleeps already and knows of none. A lent write
// that nobody answers is cancelled in time although no call is there to do it.
func TestD81_NobodyWaits(t *testing.T) {
	opt := Options{SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 1000}
	a, b := pair(t, opt, opt)
	until(t, a, "own goroutine", 5*time.Second, func() bool { a.leave(); return a.drv.own })
	time.Sleep(2 * attendTime) // it sleeps on events now
	b.mu.Lock()                // the peer answers nothing
	x, err := a.StartWrite(make([]byte, 5000))
	if err != nil {
		b.mu.Unlock()
		t.Fatal(err)
	}
	until(t, a, "SrcAvailCancel", 10*time.Second, func() bool { return a.m.Stats().SentSrcCancels > 0 })
	b.mu.Unlock()
	if n, err := x.Wait(t.Context()); n != 5000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	shut(t, a, b)
}

// TestEventIsPassedOn: an event goes to one of those who sleep. A call that got it
// and leaves asks for the next one, for the connection's own goroutine: with
// three private buffers of 37 bytes a stream once stood still because it did not.
func TestEventIsPassedOn(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	defer shut(t, a, b)
	a.mu.Lock()
	a.drv.own = true // the test is that goroutine
	a.mu.Unlock()
	read := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		read <- err
	}()
	until(t, a, "sleeper", 5*time.Second, func() bool { return a.drv.sleepers == 1 })
	if _, err := b.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if _, err := b.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.cq.Events():
	case <-time.After(testkit.Patience):
		t.Error("nobody is told of what came next")
	}
	a.mu.Lock()
	a.drv.own = false
	a.leave()
	a.mu.Unlock()
}

// TestWriterIsTold: a write that may leave once its Sends are complete, or once
// the send buffer has room, learns that from whoever takes the completions.
func TestWriterIsTold(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	defer shut(t, a, b)
	o := newOp()
	a.mu.Lock()
	o.own, o.waited, o.leaves, o.asleep, o.after = true, true, true, true, a.send.done+1
	a.wops = append(a.wops, o)
	a.drv.sleepers++
	a.send.done++ // as one of the completions does that others take below
	a.mu.Unlock()
	if _, err := b.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	select {
	case <-o.wake:
	default:
		t.Error("the writer sleeps on")
	}
	a.mu.Lock()
	a.wops = a.wops[:0]
	a.drv.sleepers--
	a.mu.Unlock()
}

// What has come before both ends closed is read, and then the end, although the
// stream below is gone by then. [SDP-8.2.1-23]
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
	a.streamEnded() // as the completions do that are flushed
	a.mu.Unlock()
	if got, err := io.ReadAll(a); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestHeld: a read waits for the rest of a message for a while, and the more
// often that was in vain the longer none does.
func TestHeld(t *testing.T) {
	var h held
	now := time.Unix(0, 0)
	for i, skips := range []int{1, 3, 7} {
		if h.wary() {
			t.Fatalf("%d: wary", i)
		}
		h.begin(now)
		if h.over(now.Add(heldTime - 1)) {
			t.Errorf("%d: over too soon", i)
		}
		if now = now.Add(heldTime); !h.over(now) {
			t.Errorf("%d: not over", i)
		}
		h.on = false
		for n := range skips {
			if !h.wary() {
				t.Errorf("%d: not wary the %d. time", i, n)
			}
		}
	}
	h.begin(now)
	h.begin(now) // more came, which halves the number of reads that are wary
	h.over(now.Add(heldTime))
	wary := 0
	for h.wary() {
		wary++
	}
	if wary != 7 {
		t.Errorf("%d reads are wary after what came, want 7", wary)
	}
}

// A reader looks again at once where its last look brought much, or was long ago,
// or where what comes is not a stream of large messages.
func TestTooSoon(t *testing.T) {
	if !attend.CanNap {
		t.Skip("SKIPPED: no short sleeps on this system")
	}
	for _, c := range []struct {
		what   string
		change func(*driver)
		want   bool
	}{
		{"a stream, little came", func(d *driver) {}, true},
		{"much came", func(d *driver) { d.got = napBytes }, false},
		{"long ago", func(d *driver) { d.gotAt = time.Now().Add(-2 * napTime) }, false},
		{"a short streak", func(d *driver) { d.streak-- }, false},
		{"small messages", func(d *driver) { d.large = false }, false},
	} {
		d := &driver{large: true, streak: streakLen, got: napBytes - 1}
		d.gotAt = time.Now().Add(time.Hour) // whenever the test looks
		c.change(d)
		if got := d.tooSoon(); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}
