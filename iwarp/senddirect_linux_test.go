package iwarp

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/rdmap"
)

// tiny returns payload that fits into one short FPDU.
func tiny(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 1000) }

// fillDirect posts requests by post, numbered from 1, until a request that bypasses the send queue
// finds the socket full for good. It returns the number of this request. post returns true if the
// socket has taken the request already. told is true if a request that the socket takes late has a
// completion.
func fillDirect(t *testing.T, q *QueuePair, told bool, post func(i int) (done bool)) int {
	t.Helper()
	for i := 1; i < 1<<16; i++ {
		done := post(i)
		if n := q.sends.work.Posted(); n != 0 {
			t.Fatalf("request %d has passed through the queue", i)
		}
		if done {
			continue
		}
		stays := false
		testkit.Eventually(t, "the socket to be full, or to take it", func() bool {
			// Look a second time, because a busy kernel may free room a little later.
			if stays = full(t, q); stays {
				time.Sleep(20 * time.Millisecond)
				stays = full(t, q) && q.sends.direct.pending()
			}
			return stays || !q.sends.direct.pending()
		})
		if stays {
			if n := q.Stats().SendPosted; n != 1 {
				t.Errorf("%d requests are under way", n)
			}
			return i
		}
		if told {
			if c := wantOK(t, q.SendCQ()); c.ID != uint64(i) {
				t.Errorf("%+v, want that of %d", c, i)
			}
		}
		testkit.Eventually(t, "the send role is free again", func() (free bool) {
			q.link.fc.SendNow(func() bool { free = true; return false })
			return free
		})
	}
	t.Fatal("the socket is never full")
	return 0
}

// full reports whether the socket takes no more bytes, even after the bytes under way arrive.
func full(t *testing.T, q *QueuePair) (yes bool) {
	t.Helper()
	if err := q.link.fc.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := sock.Poll(p, 0)
		yes = info.Unacked == 0 && n == 0 && err == nil
	}); err != nil {
		t.Fatal(err)
	}
	return yes
}

// TestDirect checks that short requests that find the queue empty bypass it, keep the order of
// posting, and have the same completions as through the queue, also if the socket takes them late.
// Their memory may change after the post.
func TestDirect(t *testing.T) {
	for _, c := range []struct {
		name string
		post func(t *testing.T, q *QueuePair, i int, p []byte) (done bool, err error)
	}{
		{"signaled", func(t *testing.T, q *QueuePair, i int, p []byte) (bool, error) {
			err := q.Post(SendWR{ID: uint64(i), Op: []Op{OpSend, OpWrite}[i%2], SG: []SGE{Buf(p)}})
			if c, ok := q.SendCQ().Poll(); ok {
				if c.ID != uint64(i) || c.Op != []Op{OpSend, OpWrite}[i%2] || c.Status != StatusOK {
					t.Fatalf("request %d: %+v", i, c)
				}
				return true, err
			}
			return false, err
		}},
		{"PostNow", func(_ *testing.T, q *QueuePair, i int, p []byte) (bool, error) {
			return (*stream)(q).PostNow(SendWR{ID: uint64(i), SG: []SGE{Buf(p[:400]), Buf(nil), Buf(p[400:])}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asResponder(t, &Config{Interop: Interop{FPDUSize: 20000}})
			last := fillDirect(t, q, true, func(i int) bool {
				b := tiny(i)
				done, err := c.post(t, q, i, b)
				if err != nil || done && q.sends.direct.pending() {
					t.Fatalf("request %d: complete %t, %v", i, done, err)
				}
				clear(b)
				return done
			})
			for i := last + 1; i <= last+3; i++ { // these requests find the direct one pending
				if err := q.Post(SendWR{ID: uint64(i), SG: []SGE{Buf(tiny(i))}}); err != nil {
					t.Fatal(err)
				}
			}
			if n := q.sends.work.Posted(); n != 3 {
				t.Errorf("%d requests in the queue", n)
			}
			if c, ok := q.SendCQ().Poll(); ok {
				t.Errorf("%+v although the socket is full", c)
			}
			for i := 1; i <= last+3; i++ {
				if _, _, body := p.message(q.mulpdu()); !bytes.Equal(body, tiny(i)) {
					t.Fatalf("message %d: %d bytes, %x", i, len(body), body[:min(4, len(body))])
				}
			}
			for i := last; i <= last+3; i++ {
				if c := wantOK(t, q.SendCQ()); c.ID != uint64(i) {
					t.Errorf("%+v, want that of %d", c, i)
				}
			}
			if n := q.sends.used.Load(); n != 0 {
				t.Errorf("%d places in use", n)
			}
		})
	}
}

// TestDirectNot checks that a request that is not short, or that has to wait, goes through the
// queue.
func TestDirectNot(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{FPDUSize: 20000}, SendDepth: 2})
	for _, c := range []struct {
		what string
		wr   SendWR
	}{
		{"long", SendWR{SG: []SGE{Buf(make([]byte, smallFPDU))}}},
		{"more follow", SendWR{More: true}},
		{"behind one that waits", SendWR{}},
		{"a Read", SendWR{Op: OpRead, Remote: RemoteAddr{STag: 1}}},
	} {
		before := q.sends.work.Posted()
		if err := q.Post(c.wr); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if q.sends.work.Posted() != before+1 {
			t.Errorf("%s: went past the queue", c.what)
		}
		if !c.wr.More && c.wr.Op != OpRead {
			for q.sends.used.Load() > 0 {
				p.next()
				wantOK(t, q.SendCQ())
			}
		}
	}
	n := q.sends.work.Posted()
	if err := q.Post(SendWR{}); err != nil || q.sends.work.Posted() != n+1 { // a Send is queued after the Read
		t.Errorf("%v, went past an outstanding Read: %t", err, q.sends.work.Posted() == n)
	}
	if err := q.Post(SendWR{}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("%v with as many as the queue may hold", err)
	}
}

// TestDirectFlushed ends the stream while a request waits for the socket. The request must be
// flushed once, before later requests, even if it is unsignaled.
func TestDirectFlushed(t *testing.T) {
	_, q := asResponder(t, &Config{Interop: Interop{FPDUSize: 20000}})
	last := fillDirect(t, q, false, func(i int) bool {
		if err := q.Post(SendWR{ID: uint64(i), Unsignaled: true, SG: []SGE{Buf(tiny(i))}}); err != nil {
			t.Fatal(err)
		}
		return q.Stats().SendPosted == 0
	})
	q.Post(SendWR{ID: uint64(last + 1)})
	q.Abort()
	q.Close()
	for i := last; i <= last+1; i++ {
		if c, ok := q.SendCQ().Poll(); !ok || c.ID != uint64(i) || c.Status != StatusFlushed {
			t.Errorf("%t, %+v, want %d flushed", ok, c, i)
		}
	}
	if c, ok := q.SendCQ().Poll(); ok {
		t.Errorf("one more: %+v", c)
	}
	if q.sends.direct.signal(uint64(last)) == false {
		t.Error("PostNow would take a flushed request for sent")
	}
}

// TestDirectClose checks that our direction does not end before a request that waits for the socket
// was sent. [DDP-6.2.1-1]
func TestDirectClose(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{FPDUSize: 20000}})
	last := fillDirect(t, q, true, func(i int) bool {
		sent, err := (*stream)(q).PostNow(SendWR{ID: uint64(i), SG: []SGE{Buf(tiny(i))}})
		if err != nil {
			t.Fatal(err)
		}
		return sent
	})
	if err := q.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if q.life.drained.has() {
		t.Error("the direction has ended with a request under way")
	}
	for i := 1; i <= last; i++ {
		if op, _, body := p.message(q.mulpdu()); op != rdmap.Send || !bytes.Equal(body, tiny(i)) {
			t.Fatalf("message %d: %v of %d bytes", i, op, len(body))
		}
	}
	p.fin()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c, err := q.SendCQ().Wait(ctx); err != nil || c.ID != uint64(last) {
		t.Errorf("%+v, %v", c, err)
	}
	select {
	case <-q.life.drained.C():
	case <-time.After(patience):
		t.Error("the direction does not end")
	}
}

// TestDirectOrder checks that a request bypasses the queue only after all earlier requests have
// completed, including Reads, which the receive role completes.
func TestDirectOrder(t *testing.T) {
	a, b := connect(t, nil, nil)
	mr, err := b.Register(make([]byte, 100), RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	direct, tried := false, false
	told := a.sends.work.OnDones
	a.sends.work.OnDones = func() {
		if !tried {
			_, direct = a.sendDirect(&SendWR{ID: 2, Op: OpWrite}, true)
			tried = true
		}
		told()
	}
	if err := a.Post(SendWR{ID: 1, Op: OpRead, SG: []SGE{Buf(make([]byte, 100))}, Remote: RemoteAddr{STag: mr.STag(), TO: mr.TO()}}); err != nil {
		t.Fatal(err)
	}
	if c := wantOK(t, a.SendCQ()); c.ID != 1 || !tried || direct {
		t.Errorf("request %d is complete first; another one was tried: %t, and sent: %t", c.ID, tried, direct)
	}
}
