package sdp

import (
	"bytes"
	"slices"
	"testing"

	"viaduct/internal/wire/sdpwire"
)

// dataHead returns the header of a Data message with n bytes of payload.
func dataHead(n int, f sdpwire.Flags) []byte {
	m := sdpwire.Message{MID: sdpwire.Data, Flags: f, Bufs: 5, Len: uint32(sdpwire.BSDHLen + n)}
	return m.Append(nil, sdpwire.Figure)
}

// TestInboxLands checks that payload goes into the lent buffer only if it fits and all earlier
// payload went there. In any doubt the payload must go to a Private Buffer.
func TestInboxLands(t *testing.T) {
	in := newInbox(sdpwire.Figure, 4, 1000)
	lent := make([]byte, 100)
	in.lend(lent, false, false)
	next := func(head []byte, size int, last bool) (id uint64, sg int) {
		t.Helper()
		wr, ok := in.NextRecv(head, size, last)
		if !ok {
			t.Fatal("no slot")
		}
		return wr.ID, len(wr.SG)
	}
	a, n := next(dataHead(60, 0), 76, true)
	if n != 2 || &in.slots[a].body[0] != &lent[0] || in.Full(pending(0)) != true {
		t.Errorf("first: %d pieces, full %t", n, in.Full(pending(0)))
	}
	// The message has two segments, so the length in the header may be too small.
	b, n := next(dataHead(40, 0), 40, false)
	if n != 3 || &in.slots[b].body[0] != &lent[60] {
		t.Errorf("second: %d pieces", n)
	}
	if c, n := next(dataHead(1, 0), 17, true); n != 1 || in.slots[c].body != nil {
		t.Error("a third one found room")
	}
	// The second message has arrived in part when the loan ends.
	wr, _ := in.Reclaim(b)
	if len(wr.SG) != 1 || in.slots[b].body != nil || in.loose != 1 {
		t.Errorf("reclaimed to %d pieces, %d loose", len(wr.SG), in.loose)
	}
	copy(lent, "payload")
	p := in.own(int(a), in.slots[a].body)
	if !bytes.HasPrefix(p, []byte("payload")) || &p[0] == &lent[0] || in.loose != 0 {
		t.Errorf("%q stayed where it was", p[:7])
	}
	if head, body := in.message(a, 76); len(head) != 76 || body != nil {
		t.Error("the message is in two places")
	}
	for id := range 3 {
		in.release(id)
	}
	if !in.idle() {
		t.Error("not idle")
	}
	for _, c := range []struct {
		what string
		head []byte
		size int
	}{
		{"urgent", dataHead(10, sdpwire.OOBPres), 26},
		{"too long", dataHead(101, 0), 117},
		{"lies about its length", dataHead(10, 0), 27},
		{"header incomplete", dataHead(10, 0)[:15], 26},
	} {
		in.lend(lent, false, false)
		id, n := next(c.head, c.size, true)
		if n != 1 || in.slots[id].body != nil || !in.Full(pending(0)) {
			t.Errorf("%s: landed in %d pieces, full %t", c.what, n, in.Full(pending(0)))
		}
		in.release(int(id))
	}
	in.lend(lent, false, false)
	if next(dataHead(0, 0), 16, true); in.Full(pending(0)) {
		t.Error("a message without payload closes the buffer")
	}
}

// TestInboxLendsLate lends a buffer after a message has arrived in a Private Buffer. Bytes after
// the message must not go into the lent buffer. [SDP-4.1-1]
func TestInboxLendsLate(t *testing.T) {
	in := newInbox(sdpwire.Figure, 4, 1000)
	lent := make([]byte, 100)
	wr, ok := in.NextRecv(dataHead(10, 0), 26, true) // the stream does this, perhaps in another goroutine
	if !ok {
		t.Fatal("no slot")
	}
	in.lend(lent, false, false)
	if !in.Full(pending(0)) {
		t.Error("what is behind a message that was not counted in is not left alone")
	}
	next, ok := in.NextRecv(dataHead(10, 0), 26, true)
	if !ok || in.loose != 0 {
		t.Errorf("%d messages in the buffer of a read", in.loose)
	}
	if !in.Keep() {
		t.Error("what was left is not kept until the message has been counted in")
	}
	in.release(int(wr.ID))
	in.release(int(next.ID))
	if !in.idle() {
		t.Fatal("not idle")
	}
	if left, now := in.lend(lent, true, false); !left || now || !in.Keep() {
		t.Errorf("left %t, to be received now %t, with no read to receive it", left, now)
	}
	if left, now := in.lend(lent, false, false); left || now || in.Keep() {
		t.Errorf("left %t, to be received now %t, and nothing was left", left, now)
	}
	in.full = true
	if left, now := in.lend(lent, false, false); !left || !now || in.Keep() {
		t.Errorf("left %t, to be received now %t, and something was left", left, now)
	}
	if in.Full(pending(0)) {
		t.Error("nothing is taken although nothing is there")
	}
}

// TestInboxStream checks a stream of large messages. A wary read may get several messages only
// after all have arrived. The next messages must be predicted to be like the last, and a current
// message must stay in place from poll to poll. [SDP-4.1-1]
func TestInboxStream(t *testing.T) {
	const size = bulkSize
	in := newInbox(sdpwire.Figure, 4, size+100)
	lent := make([]byte, 4*size)
	in.lend(lent, false, false)
	if g := in.Guess(); g.Payload != nil {
		t.Error("a guess out of nothing")
	}
	land := func(at int, last bool) uint64 {
		t.Helper()
		n := size
		if !last {
			n /= 2
		}
		wr, ok := in.NextRecv(dataHead(size, 0), n+16, last)
		if !ok || len(wr.SG) < 2 || &wr.SG[1].Buf[0] != &lent[at] {
			t.Fatalf("not at %d", at)
		}
		return wr.ID
	}
	a := land(0, true)
	if g := in.Guess(); g.Header != sdpwire.BSDHLen || g.Size != size || len(g.Payload) != 3*size ||
		&g.Payload[0] != &lent[size] || g.Partial != 3 {
		t.Errorf("guess %d of %d bytes behind %d in %d", g.Partial, g.Size, g.Header, len(g.Payload))
	}
	if in.Full(pending(size / 2)) {
		t.Error("half a message is left alone by a read that waits for the rest")
	}
	in.wary = true
	if g := in.Guess(); g.Partial != 0 {
		t.Errorf("%d messages may come in part", g.Partial)
	}
	if !in.Full(pending(size / 2)) {
		t.Error("half a message is begun")
	}
	if in.Full(pending(size + overhead)) {
		t.Error("a whole message is left alone")
	}
	b := land(size, false)
	if g := in.Guess(); g.Open != size+16 {
		t.Errorf("message of %d bytes in progress", g.Open)
	}
	in.release(int(a))
	in.full = true
	if left, now := in.lend(nil, true, true); left || now { // the rest of message b has not arrived
		t.Errorf("left %t, to be received now %t, while a message is in progress", left, now)
	}
	in.full = false
	if !in.lending() {
		t.Error("the message in progress has moved")
	}
	c := land(2*size, true)
	if !in.lends() {
		t.Error("nothing is in the buffer of the read")
	}
	if wr, _ := in.NextRecv(dataHead(size, 0), size+16, true); len(wr.SG) != 1 {
		t.Error("another one is received into what is not lent any more")
	}
	if !in.Full(pending(3 * size)) {
		t.Error("something goes behind what was received apart")
	}
	if wr, ok := in.Reclaim(c); !ok || len(wr.SG) != 1 {
		t.Error("nowhere to move the message to")
	}
	in.release(int(b))
	if in.lending() {
		t.Error("something is lent still")
	}
	for i := range in.made {
		if !slices.Contains(in.free, i) {
			in.release(i)
		}
		if s := in.slots[i]; s.buf != nil || s.body != nil || s.sg[0].Buf != nil ||
			s.sg[1].Buf != nil || s.sg[2].Buf != nil {
			t.Errorf("slot %d keeps memory", i)
		}
	}
}

// A pending is the number of received bytes of the next message.
type pending int

func (p pending) Has(n int) bool { return n <= int(p) }
func (p pending) IsSend() bool   { return true }
