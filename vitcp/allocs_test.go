package vitcp

import (
	"fmt"
	"testing"
	"time"

	"viaduct/vi"
)

// In steady state a message causes no allocation at either side. This holds at every level, with
// and without flow control.
func TestAllocs(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools forget")
	}
	end := time.Now().Add(patience)
	for _, level := range levels {
		for _, flow := range []bool{false, true} {
			for _, size := range []int{64, 100000} {
				t.Run(fmt.Sprintf("%v/flow=%v/%d", level, flow, size), func(t *testing.T) {
					attrs := withLevel(reliableAll, level)
					attrs.FlowControl = flow
					p := connectPair(t, Config{}, attrs)
					ra, _ := register(t, p.na, size, allRights)
					rb, _ := register(t, p.nb, size, allRights)
					ctx := testContext(t)
					send, recv := vi.NewSend(segment(ra, 0, size)), vi.NewRecv(segment(rb, 0, size))
					write := vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, size)).WithImmediate(1)
					read := vi.NewRDMARead(rb.Remote(0), segment(ra, 0, size))
					step := func(d *vi.Descriptor, consumes bool) {
						if consumes {
							if err := p.b.PostRecv(recv); err != nil {
								t.Fatal(err)
							}
						}
						if err := p.a.PostSend(d); err != nil {
							t.Fatal(err)
						}
						if consumes {
							if _, err := p.b.RecvWait(ctx); err != nil {
								t.Fatal(err)
							}
						}
						if _, err := p.a.SendWait(ctx); err != nil {
							t.Fatal(err)
						}
					}
					all := func() {
						step(send, true)
						step(write, true)
						if level != vi.UnreliableDelivery {
							step(read, false)
						}
					}
					for range 50 {
						all()
					}
					n := testing.AllocsPerRun(100, all)
					// repeated, because slow messages make allocations of the runtime count for more
					for n >= 1 && time.Now().Before(end) {
						n = testing.AllocsPerRun(40, all)
					}
					if n >= 1 {
						t.Errorf("%v allocations for three messages", n)
					}
				})
			}
		}
	}
}
