package fcvi

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/samehost"
	"viaduct/vi"
)

// TestSameHost: VIs on a link requiring shared memory transfer the same messages as over TCP,
// including messages longer than the ring.
func TestSameHost(t *testing.T) {
	const n = 3 << 20
	from, to, src, dst := benchPair(t, vi.ReliableReception, Config{SameHost: samehost.Require, MaxTransferSize: n})
	want := bytes.Repeat([]byte("a ring is shorter than this. "), n/29+1)[:n]
	copy(src.Bytes(), want)
	for _, send := range []bool{true, false} {
		clear(dst.Bytes())
		recv, d := vi.NewRecv(dst.Segment(0, n)), vi.NewRDMAWrite(dst.Remote(0), src.Segment(0, n))
		if send {
			d = vi.NewSend(src.Segment(0, n))
			if err := to.PostRecv(recv); err != nil {
				t.Fatal(err)
			}
		}
		if err := from.PostSend(d); err != nil {
			t.Fatal(err)
		}
		poll(t, from.SendDone)
		if send {
			poll(t, to.RecvDone)
		}
		if !bytes.Equal(dst.Bytes()[:n], want) {
			t.Errorf("send %t: other bytes", send)
		}
	}
}

// Path reports the path of a VI's link, and the reason.
func TestPath(t *testing.T) {
	for _, c := range []struct {
		cfg Config
		why string
	}{
		{Config{SameHost: samehost.Require}, ""},
		{Config{SameHost: samehost.Auto}, ""},
		{Config{SameHost: samehost.Off}, "turned off"},
		{Config{SameHost: samehost.Auto, WrapConn: func(nc net.Conn) net.Conn { return struct{ net.Conn }{nc} }}, "wrapped"},
	} {
		from, to, _, _ := benchPair(t, vi.ReliableDelivery, c.cfg)
		for end := time.Now().Add(testkit.Patience); late(from.Path()) && time.Now().Before(end); {
			from, to, _, _ = benchPair(t, vi.ReliableDelivery, c.cfg)
		}
		for _, v := range []*vi.VI{from, to} {
			if p := v.Path(); p.SharedMemory != (c.why == "") || !strings.Contains(p.Why, c.why) ||
				(p.Why == "") != p.SharedMemory {
				t.Errorf("%v, not %q", p, c.why)
			}
		}
	}
}

// late reports whether a link uses TCP because the listener was late. Auto gives a listener a
// fraction of a second, which a busy machine may exceed.
func late(p samehost.Path) bool {
	return strings.Contains(p.Why, "in time") || strings.Contains(p.Why, "has not accepted")
}
