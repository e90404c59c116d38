package fcvi

import (
	"bytes"
	"testing"

	"viaduct/samehost"
	"viaduct/vi"
)

// TestSameHost: VIs whose link goes through shared memory, and can't go otherwise,
// transfer as over TCP, messages longer than the ring included.
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
