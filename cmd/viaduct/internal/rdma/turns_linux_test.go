//go:build linux && (amd64 || arm64)

package rdma

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// A slow set-up delays the later set-ups with the same peer, for a limited time, and no others.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts turns
		peer, other := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:1")
		waited := func(n turn) time.Duration {
			begun := time.Now()
			n.wait()
			return time.Since(begun)
		}
		slow, second, third, apart := ts.next(peer), ts.next(peer), ts.next(peer), ts.next(other)
		if d := waited(slow) + waited(apart); d != 0 {
			t.Errorf("the first of each peer waited %v", d)
		}
		apart.end()
		time.AfterFunc(time.Second, slow.end)
		if d := waited(second); d != time.Second {
			t.Errorf("the second waited %v for the first, which took 1s", d)
		}
		if d := waited(third); d != turnTime {
			t.Errorf("the third waited %v, at most %v", d, turnTime)
		}
		second.end()
		third.end()
		if d := waited(ts.next(peer)); d != 0 {
			t.Errorf("a later one waited %v", d)
		}
		if len(ts.last) != 1 {
			t.Errorf("%d peers are kept", len(ts.last))
		}
	})
}
