package frameio

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"viaduct/internal/testkit"
)

// sendNow sends the frame f by SendNow.
func (p *lengthFramed) sendNow(f []byte) bool {
	return p.c.SendNow(func() bool {
		b := p.c.Frame(4 + len(f))
		if len(b) != 4+len(f) {
			panic("another length")
		}
		binary.BigEndian.PutUint32(b, uint32(len(f)))
		copy(b[4:], f)
		p.mu.Lock()
		p.pending++
		p.mu.Unlock()
		return true
	})
}

// TestSendNow: a frame bypasses the queue if the send role is free, and Sent reports the frame as
// usual. If the role is taken, SendNow must do nothing. Frames posted meanwhile follow.
func TestSendNow(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		if a.c.sock.Load() == nil {
			if a.sendNow([]byte("x")) {
				t.Error("sent, and a portable stream's Write may block")
			}
			return
		}
		done := b.expect(t, [][]byte{[]byte("first"), []byte("second"), []byte("queued")})
		b.c.Start(nil)
		if !a.sendNow([]byte("first")) || a.sentFrames() != 1 {
			t.Fatalf("%d frames sent", a.sentFrames())
		}
		if a.c.SendNow(func() bool { return false }) || a.c.SendNow(func() bool { a.c.Frame(8); return false }) {
			t.Error("true although fill was false")
		}
		a.c.tx.state.Store(busy) // as if a goroutine had the role
		if a.sendNow([]byte("x")) {
			t.Error("sent without the role")
		}
		a.c.tx.state.Store(idle)
		a.taken = func() { a.taken = nil; a.post([]byte("queued")); a.c.Kick() }
		if !a.sendNow([]byte("second")) || a.sentFrames() != 3 {
			t.Errorf("%d frames sent", a.sentFrames())
		}
		testkit.Await(t, "all frames", done)
		a.c.Shutdown()
		if a.sendNow([]byte("x")) {
			t.Error("sent behind the end of the direction")
		}
	})
}

// TestSendNowFull: a frame the socket has no room for is sent once there is room.
func TestSendNowFull(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		if a.c.sock.Load() == nil {
			return // SendNow sends nothing on a portable stream
		}
		// The kernel may find room at any time for a frame that the socket had no room for. So hold
		// keeps the role at the beginning of Sent until release, and begun counts the calls of Sent.
		var hold atomic.Bool
		var begun atomic.Int32
		release := make(chan struct{})
		a.taken = func() {
			if begun.Add(1); hold.Load() {
				<-release
			}
		}
		var fs [][]byte
		for int(begun.Load()) == len(fs) {
			hold.Store(false)
			testkit.Eventually(t, "the role is free", func() bool { return a.c.tx.state.Load() == idle })
			f := bytes.Repeat([]byte{byte(len(fs))}, 1+len(fs)*7%1000)
			if fs = append(fs, f); !a.sendNow(f) {
				t.Fatalf("frame %d: not sent", len(fs))
			}
			hold.Store(true) // before begun is read
		}
		if a.sendNow([]byte("x")) {
			t.Error("sent although a frame waits")
		}
		a.post([]byte("queued"))
		a.c.Kick()
		done := b.expect(t, append(fs, []byte("queued")))
		close(release)
		b.c.Start(nil)
		testkit.Await(t, "all frames", done)
		testkit.Eventually(t, "everything is reported as sent", func() bool { return a.sentFrames() == len(fs)+1 })
	})
}
