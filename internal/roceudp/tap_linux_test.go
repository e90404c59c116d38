package roceudp

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

// A tap gets each packet the port sends or receives, with the addresses the invariant CRC covers.
// The destination of a packet to a group is therefore the group.
func TestTap(t *testing.T) {
	own := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
	group := netip.AddrFrom4([4]byte{239, 255, byte(rand.IntN(256)), byte(rand.IntN(256))})
	p, err := Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	type seen struct {
		out bool
		dst netip.Addr
	}
	want := map[seen]bool{{true, own}: true, {false, own}: true, {true, group}: true, {false, group}: true}
	var mu sync.Mutex // guards want
	p.SetTap(func(out bool, src, dst netip.AddrPort, b []byte) {
		flow := ib.Flow{Source: src, Destination: dst}
		if id, err := flow.Identification(b); err != nil || id != 0 {
			t.Errorf("%v to %v: identification %d, %v", src, dst, id, err)
		}
		mu.Lock()
		delete(want, seen{out, dst.Addr()})
		mu.Unlock()
	})
	q, err := p.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	q.Datagrams(tapHost{}, rocecore.DatagramConfig{MTU: 1024, QKey: 7})
	if err := q.Join(group, nil); err != nil {
		t.Logf("SKIPPED: packets to a group: %v", err)
		mu.Lock()
		delete(want, seen{false, group})
		mu.Unlock()
	}
	missing := func() map[seen]bool {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(want)
	}
	for end := time.Now().Add(time.Minute); len(missing()) > 0; time.Sleep(10 * time.Millisecond) {
		q.Post(&rocecore.Request{To: rocecore.Destination{Addr: own, QPN: q.QPN(), QKey: 7}},
			&rocecore.Request{To: rocecore.Destination{Addr: group, QPN: ib.MulticastQPN, QKey: 7}})
		if time.Now().After(end) {
			if left := missing(); len(left) != 1 || !left[seen{false, group}] {
				t.Fatalf("not seen in a minute: %v", left)
			}
			t.Skip("SKIPPED: packets to a group do not arrive on the loopback interface here")
		}
	}
}

// A tapHost has neither receives nor memory.
type tapHost struct{ rocecore.Host }

func (tapHost) NextReceive() (rocecore.Receive, bool)              { return rocecore.Receive{}, false }
func (tapHost) RequestDone(*rocecore.Request, rocecore.Completion) {}
func (tapHost) Failed(rocecore.Status)                             {}
