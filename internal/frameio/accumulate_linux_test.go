package frameio

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
)

// TestPilesUp: all frames arrive in order, followed by the end of the stream, whatever happens
// during a pause of the receiver.
func TestPilesUp(t *testing.T) {
	for round := range 3 {
		nc, peer := testkit.TCPPair(t)
		p := newFramed(nc, Options{})
		var got atomic.Uint32
		p.got = func(b []byte) {
			if n := binary.BigEndian.Uint32(b); n != got.Load() {
				t.Errorf("frame %d after %d", n, got.Load())
			}
			got.Add(1)
		}
		p.c.Start(nil)
		if p.c.sock.Load() == nil {
			t.Skip("SKIPPED: only the fast path lets anything pile up")
		}
		f := []byte{0, 0, 0, 4, 0, 0, 0, 0}
		sent := uint32(0)
		send := func() {
			if _, err := peer.Write(f); err != nil {
				t.Fatal(err)
			}
			sent++
			binary.BigEndian.PutUint32(f[4:], sent)
		}
		all := func() bool { return got.Load() == sent }
		// On a busy machine there may be no pause. The checks below must hold then too.
		intoLull := func() {
			limit := time.Now().Add(100 * time.Millisecond)
			for attend.Pauses() == 0 && time.Now().Before(limit) {
				send()
			}
		}
		best := testkit.Patience
		// Later than quick, another goroutine would find the frame. The best time counts, because a
		// busy machine delays the usual finder too. The rounds go on until one is quick.
		const quick = sweepEvery / 2
		end := time.Now().Add(testkit.Patience)
		for i := 0; i < 10 || best > quick && time.Now().Before(end); i++ {
			intoLull()
			testkit.Eventually(t, "all frames, and nothing after", all)
			time.Sleep(2 * time.Millisecond) // the pause has ended
			begin := time.Now()
			send()
			testkit.Eventually(t, "one more", all)
			best = min(best, time.Since(begin))
			intoLull()
			for range 100 {
				send()
				p.c.Poll()
			}
			for !all() {
				p.c.Poll()
			}
			intoLull()
			p.c.Poll()
			send()
			testkit.Eventually(t, "all frames with a consumer that does not come", all)
			p.c.Unpoll()
			intoLull()
			p.post([]byte{1})
			p.c.Kick()
			send()
			testkit.Eventually(t, "all frames when something was sent", all)
			intoLull()
			p.c.sock.Load().Interrupt() // as the sweep interrupts an attendant
			testkit.Eventually(t, "all frames with another goroutine", all)
		}
		if best > quick {
			t.Errorf("after a pause a frame took %v at best", best)
		}
		intoLull()
		switch round {
		case 0:
			peer.Close() // the receive buffer is not empty, so this may be a reset
			testkit.Await(t, "the end of the stream", p.failed)
		case 1:
			peer.(*net.TCPConn).CloseWrite()
			if err := testkit.Await(t, "the end of the stream", p.failed); err != io.EOF || !all() {
				t.Errorf("%v after %d of %d frames, want EOF", err, got.Load(), sent)
			}
		}
		p.close(t)
		peer.Close()
		if n := attend.Pauses(); n != 0 {
			t.Errorf("%d pauses after the end", n)
		}
	}
}
