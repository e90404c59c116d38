package frameio

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// TestPacer: arrivals pile up where they follow each other closely, are short,
// and nothing is sent meanwhile; and only as long as they do not become fewer
// by it.
func TestPacer(t *testing.T) {
	const gap = streamGap / 4
	start := time.Now()
	run := func(p *pacer, now time.Time, n int) (time.Time, bool) {
		on := false
		for i := range streamRun + 1 {
			if on {
				t.Errorf("a lull after %d receives", i)
			}
			now = now.Add(gap)
			on = p.beginsAt(now, n)
		}
		return now, on
	}
	for name, receive := range map[string]func(p *pacer, i int) bool{
		"far apart": func(p *pacer, i int) bool {
			return p.beginsAt(start.Add(time.Duration(i)*(streamGap+1)), 100)
		},
		"long": func(p *pacer, i int) bool {
			return p.begins(small+1, 0)
		},
		"answered": func(p *pacer, i int) bool {
			return p.begins(100, uint32(i+1))
		},
		"polled": func(p *pacer, i int) bool {
			p.interrupted()
			return p.begins(100, 0)
		},
	} {
		var p pacer
		for i := range 10 * streamRun {
			if receive(&p, i) {
				t.Errorf("%s: a lull", name)
			}
		}
	}

	var p pacer
	now, on := run(&p, start, 100)
	if !on || lulls.Load() != 1 {
		t.Fatalf("no lull (%d)", lulls.Load())
	}
	for range 3 { // at the rate of before, and a little less
		now = now.Add(8 * gap)
		if !p.goesOn(now, 500, 0) {
			t.Error("the lull ends in the midst of the stream")
		}
	}
	// In vain: one occasion is passed over, then three, and so on.
	for want := 1; want < 10; want = 2*want + 1 {
		if now = now.Add(8 * gap); p.goesOn(now, 390, 0) || p.on || lulls.Load() != 0 {
			t.Error("the lull goes on although less came")
		}
		for i := 0; ; i++ {
			if now, on = run(&p, now.Add(streamGap), 100); on {
				if i != want {
					t.Errorf("%d occasions passed over, want %d", i, want)
				}
				break
			}
		}
	}
	if now = now.Add(8 * gap); !p.goesOn(now, 800, 0) || p.goesOn(now.Add(8*gap), 800, 1) {
		t.Error("an answer does not end the lull")
	}
	if now, on = run(&p, now.Add(streamGap), 100); on {
		t.Error("no occasion is passed over")
	}
	if _, on = run(&p, now.Add(streamGap), 100); !on {
		t.Error("more than one occasion is passed over")
	}
	p.interrupted()

	var ps [maxLulls + 1]pacer
	for i := range ps {
		if _, on := run(&ps[i], start, 100); on != (i < maxLulls) {
			t.Errorf("lull %d: %t", i, on)
		}
	}
	for i := range ps {
		ps[i].end()
		ps[i].end()
	}
	if n := lulls.Load(); n != 0 {
		t.Errorf("%d lulls after the end of all", n)
	}
}

// TestPilesUp: whatever happens during a lull, all frames come in order, and so
// does the end.
func TestPilesUp(t *testing.T) {
	for round := range 3 {
		nc, peer := tcpPair(t)
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
		// On a busy machine there may be no lull. All has to hold then too.
		intoLull := func() {
			limit := time.Now().Add(100 * time.Millisecond)
			for lulls.Load() == 0 && time.Now().Before(limit) {
				send()
			}
		}
		arrived := func() {}
		best := patience
		for range 10 {
			intoLull()
			eventually(t, "all frames, and nothing after", all)
			time.Sleep(2 * time.Millisecond) // the lull is over
			begin := time.Now()
			send()
			eventually(t, "one more", all)
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
			p.c.UnpollUntil(&arrived)
			send()
			eventually(t, "all frames with a consumer that does not come", all)
			p.c.Unpoll()
			intoLull()
			p.post([]byte{1})
			p.c.Kick()
			send()
			eventually(t, "all frames when something was sent", all)
			intoLull()
			p.c.sock.Load().startle() // see rota
			eventually(t, "all frames with another goroutine", all)
		}
		if best > quiet/2 { // then another goroutine would find it
			t.Errorf("after a lull a frame took %v at best", best)
		}
		intoLull()
		switch round {
		case 0:
			peer.Close() // whose receive buffer is not empty: a reset, perhaps
			await(t, "the end of the stream", p.failed)
		case 1:
			peer.(*net.TCPConn).CloseWrite()
			if err := await(t, "the end of the stream", p.failed); err != io.EOF || !all() {
				t.Errorf("%v after %d of %d frames, want EOF", err, got.Load(), sent)
			}
		}
		p.close(t)
		peer.Close()
		if n := lulls.Load(); n != 0 {
			t.Errorf("%d lulls after the end", n)
		}
	}
}
