package fcvi

import (
	"fmt"
	"strings"
	"testing"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
)

// A ladder holds the last frames the ports of a simulation sent. A failing test prints it.
type ladder struct {
	rungs [60]rung
	n     int
}

type rung struct {
	at    fc.Time
	from  int // number of the sending port, from 0; -1 is the fabric
	head  fc.Frame
	bytes int // bytes of payload
	iu    iu.Header
	isIU  bool
}

// climb prints the ladder of s if the test fails. The ladder is empty if the test replaces the
// network's tap.
func (s *sim) climb(t testing.TB) {
	l := &ladder{}
	s.climbOn(l)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last of %d frames:\n%s", l.n, l)
		}
	})
}

// climbOn adds the frames of the network to l.
func (s *sim) climbOn(l *ladder) {
	s.net.Tap(func(now fc.Time, from *fabric.End, f *fc.Frame) {
		r := &l.rungs[l.n%len(l.rungs)]
		l.n++
		*r = rung{at: now, from: -1, head: *f, bytes: len(f.Payload)}
		r.head.Payload, r.head.Opt = nil, nil // payload and optional header belong to the network
		for i, p := range s.ports {
			if p.end == from {
				r.from = i
			}
		}
		if f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() {
			var err error
			r.iu, _, err = iu.ParseHeader(f.Opt)
			r.isIU = err == nil
		}
	})
}

// String draws the frames. Those of the first port point to the right.
func (l *ladder) String() string {
	var b strings.Builder
	for i := max(0, l.n-len(l.rungs)); i < l.n; i++ {
		r := &l.rungs[i%len(l.rungs)]
		what := fmt.Sprintf("%v type %x", r.head.RCtl, uint8(r.head.Type))
		if r.isIU {
			what = fmt.Sprintf("%v flags %x msg %d total %d", r.iu.Op, uint32(r.iu.Flags), r.iu.MsgID, r.iu.Total)
		}
		arrow := map[int]string{0: "A ---> B", 1: "A <--- B", -1: "  fabric"}[r.from]
		fmt.Fprintf(&b, "%14v  %s  %s, cnt %x, %d bytes\n", r.at, arrow, what, r.head.SeqCnt, r.bytes)
	}
	return b.String()
}

// TestLadder checks that the ladder of a connection shows its frames with their names and senders.
func TestLadder(t *testing.T) {
	s := newSim(t, simConfig{seed: 1, order: true})
	l := &ladder{}
	s.climbOn(l)
	s.connect(iu.ReliableDelivery)
	got := l.String()
	for _, want := range []string{"A ---> B  CONNECT_RQST", "A <--- B  CONNECT_RESP1", "A ---> B  CONNECT_RESP2"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q on the ladder:\n%s", want, got)
		}
	}
}
